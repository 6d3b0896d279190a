// Package percent reads and writes parts of a GPU's time as people state them, in percent. Within Tranche they are whole
// thousandths.
package percent

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// whole is all of it, in thousandths.
const whole = 1000

// Parse reads a part in percent, such as "30", "30%" or "33.3", and returns thousandths.
func Parse(text string) (int, error) {
	number, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), "%"), 64)
	if err != nil {
		return 0, refusal(strconv.Quote(text))
	}
	return FromNumber(number)
}

// FromNumber returns a number of percent in thousandths.
func FromNumber(number float64) (int, error) {
	thousandths := math.Round(number * 10)
	if !(math.Abs(number*10-thousandths) < 1e-6) || thousandths < 1 || thousandths > whole {
		return 0, refusal(strconv.FormatFloat(number, 'f', -1, 64))
	}
	return int(thousandths), nil
}

func refusal(got string) error {
	return fmt.Errorf("must be a number of percent from 0.1 to 100 with at most one decimal place, got %s", got)
}

// Format writes thousandths in percent, such as "30%" or "33.3%".
func Format(thousandths int) string {
	return strconv.FormatFloat(float64(thousandths)/10, 'f', -1, 64) + "%"
}
