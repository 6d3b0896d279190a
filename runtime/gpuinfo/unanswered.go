package gpuinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Unanswered is a GPU that NVML lists and that did not answer, such as one that fell off the bus.
type Unanswered struct {
	Index int `json:"index"`
	// Error is NVML's error.
	Error string `json:"error"`
}

const unansweredFile = "unanswered.json"

// retryInterval is how long the list of GPUs is valid if one did not answer.
const retryInterval = time.Minute

// KeepUnanswered writes the GPUs that did not answer to the cache, for errors about a missing GPU.
func (p Place) KeepUnanswered(gpus []Unanswered) error { return p.keep(unansweredFile, gpus) }

// unanswered returns the GPUs that did not answer, and when they were queried.
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

// mayBeBack returns an error if GPUs did not answer and may answer by now: a reset restores them without a change of the
// fingerprint.
func (p Place) mayBeBack() error {
	gpus, asked := p.unanswered()
	if len(gpus) > 0 && time.Since(asked) > retryInterval {
		return fmt.Errorf("GPUs did not answer at %s%s", asked.Format(time.RFC3339), missing(gpus))
	}
	return nil
}

// missing lists the GPUs that did not answer, as the end of an error.
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
