package nvml

import (
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"
)

func TestProcessRatios_TakesTheNewestSample(t *testing.T) {
	must.Eq(t, map[int]float64{1: 0.3, 2: 1}, processRatios([]gonvml.ProcessUtilizationSample{
		{Pid: 1, TimeStamp: 200, SmUtil: 30}, {Pid: 1, TimeStamp: 150, SmUtil: 90}, {Pid: 2, TimeStamp: 101, SmUtil: 120},
		{Pid: 3, TimeStamp: 100, SmUtil: 50}, // no newer than what was requested
	}, 100))
}
