package nvml

import (
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"
)

func TestBusyProcesses(t *testing.T) {
	must.Eq(t, map[int]Busy{
		1: {Multiprocessors: 0.3, Greatest: 0.9}, // the newest sample, and the greatest
		2: {Multiprocessors: 1, Greatest: 1},
		4: {Greatest: 0.4}, 5: {Greatest: 0.5}, 6: {Greatest: 0.6}, // transcoding and copying
	}, busyProcesses([]gonvml.ProcessUtilizationSample{
		{Pid: 1, TimeStamp: 200, SmUtil: 30}, {Pid: 1, TimeStamp: 150, SmUtil: 90}, {Pid: 2, TimeStamp: 101, SmUtil: 120},
		{Pid: 3, TimeStamp: 100, SmUtil: 50}, // no newer than what was requested
		{Pid: 4, TimeStamp: 101, EncUtil: 40}, {Pid: 5, TimeStamp: 101, DecUtil: 50}, {Pid: 6, TimeStamp: 101, MemUtil: 60},
	}, 100))
}
