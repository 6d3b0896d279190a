package nodeinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Unanswered is a GPU that NVML counts and that did not answer it: one that fell off the bus, for example.
type Unanswered struct {
	Index int `json:"index"`
	// Error is what NVML said.
	Error string `json:"error"`
}

const unansweredFile = "unanswered.json"

// retryInterval is how soon a GPU that did not answer is asked again, by whoever wants to know all GPUs.
const retryInterval = time.Minute

// KeepUnanswered writes which GPUs did not answer, so that it is said to those who miss one.
func (p Place) KeepUnanswered(gpus []Unanswered) error { return p.keep(unansweredFile, gpus) }

// unanswered reads which GPUs did not answer, and when.
func (p Place) unanswered() (gpus []Unanswered, asked time.Time) {
	dir, err := p.dir()
	if err != nil {
		return nil, time.Time{}
	}
	file := filepath.Join(dir, unansweredFile)
	info, err := os.Stat(file)
	if err != nil {
		return nil, time.Time{}
	}
	read, err := read(file, func(*[]Unanswered) error { return nil })
	if err != nil {
		return nil, time.Time{}
	}
	return *read, info.ModTime()
}

// mayBeBack is an error where GPUs did not answer and may do so by now: a reset brings them back, and nothing that the
// fingerprint sums up changes.
func (p Place) mayBeBack() error {
	gpus, asked := p.unanswered()
	if len(gpus) > 0 && time.Since(asked) > retryInterval {
		return fmt.Errorf("GPUs did not answer at %s%s", asked.Format(time.RFC3339), missing(gpus))
	}
	return nil
}

// missing says which GPUs did not answer, as the end of an error.
func missing(gpus []Unanswered) string {
	if len(gpus) == 0 {
		return ""
	}
	var all []string
	for _, gpu := range gpus {
		all = append(all, fmt.Sprintf("#%d (%s)", gpu.Index, gpu.Error))
	}
	return "; these GPUs do not answer: " + strings.Join(all, ", ")
}
