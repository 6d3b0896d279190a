package cli

import (
	"errors"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

func TestChooseGPU(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(3)
	node := &nvml.Node{
		GPUs:   []nvml.GPU{a, b},
		Failed: []nvml.Failure{{Index: 1, Err: errors.New("it fell off the bus")}},
	}
	for choice, want := range map[string]nvml.GPU{"0": a, "3": b, a.UUID: a, b.UUID[:12]: b} {
		got, err := chooseGPU(node, choice)
		must.NoError(t, err)
		must.Eq(t, want, got)
	}
	for choice, want := range map[string]string{
		"2":    "there is no GPU 2: this node has 0 (NVIDIA H200, " + a.UUID + "), 3 (NVIDIA H200",
		"-1":   "there is no GPU -1",
		"1":    "GPU 1 does not answer: it fell off the bus",
		"GPU-": "2 GPUs have a UUID that begins with",
		"MIG-": "no GPU has the UUID",
		"":     "no GPU has the UUID",
	} {
		_, err := chooseGPU(node, choice)
		must.ErrorContains(t, err, want)
	}
	_, err := chooseGPU(&nvml.Node{}, "0")
	must.ErrorContains(t, err, "this node has no GPU that answers")
}
