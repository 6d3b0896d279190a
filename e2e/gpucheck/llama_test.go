//go:build gpucheck

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func needLlama(t *testing.T, s *stage) (directory string) {
	t.Helper()
	directory = filepath.Join(s.dir, "gpu-check/llama")
	if _, err := os.Stat(filepath.Join(directory, "llama")); err != nil {
		t.Skip("the bundle has no llama.cpp: make gpu-check-llama-test")
	}
	return directory
}

// llama.cpp takes the model that the check makes, and generates tokens, here on the processor.
func TestLlama_model(t *testing.T) {
	s := newStage(t)
	directory := needLlama(t, s)
	model := filepath.Join(t.TempDir(), "model.gguf")
	must.NoError(t, writeModel(model))
	cmd := exec.CommandContext(t.Context(), filepath.Join(directory, "llama"), directory, model, "cpu")
	cmd.Stdin = strings.NewReader(strings.Repeat("go\n", 4))
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	must.NoError(t, err, must.Sprint(said.String()))
	events, err := parseEvents(string(out))
	must.NoError(t, err)
	must.SliceLen(t, 4, events)
	for _, e := range events {
		must.Eq(t, "", e.Message, must.Sprint(said.String()))
	}
	must.Positive(t, events[2].Value)
	must.SliceLen(t, 64, strings.Fields(events[2].Title))
}

// The whole check on the simulated GPU: CUDA's libraries are not there, which the report says, and the rest passes.
func TestLlama_simulated(t *testing.T) {
	s := newStage(t)
	needLlama(t, s)
	status, report := s.check(t, 0)
	must.Eq(t, 0, status)
	must.Eq(t, "not possible", verdicts(report)["llama.cpp"])
	must.StrContains(t, report, "cannot open shared object file: No such file or directory; CUDA's libraries come with PyTorch or "+
		"CUDA's toolkit: name their directory in LD_LIBRARY_PATH")
}
