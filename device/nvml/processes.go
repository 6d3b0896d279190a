package nvml

import (
	"context"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// processLists are NVML's lists of the processes on a GPU. Programs that only render are on the second alone, and clients of
// MPS may be on the third alone; a process may be on several.
var processLists = []struct {
	symbol  string
	list    func(gonvml.Device) ([]gonvml.ProcessInfo, gonvml.Return)
	renders bool
}{
	{"nvmlDeviceGetComputeRunningProcesses", gonvml.Device.GetComputeRunningProcesses, false},
	{"nvmlDeviceGetGraphicsRunningProcesses", gonvml.Device.GetGraphicsRunningProcesses, true},
	{"nvmlDeviceGetMPSComputeRunningProcesses", gonvml.Device.GetMPSComputeRunningProcesses, false},
}

// Processes implements Interface.
func (l *Library) Processes(ctx context.Context, uuid string) ([]Process, error) {
	return call(ctx, l, func() ([]Process, error) {
		device, err := l.find(uuid)
		if err != nil {
			return nil, err
		}
		var processes []Process
		places := make(map[uint32]int)
		for i, lists := range processLists {
			if !l.has(lists.symbol) {
				continue
			}
			infos, ret := lists.list(device)
			if ret != gonvml.SUCCESS && (i == 0 || !unsupported(ret)) {
				return nil, failure("list the processes of the GPU "+uuid, ret)
			}
			for _, info := range infos {
				place, listed := places[info.Pid]
				if !listed {
					place = len(processes)
					places[info.Pid] = place
					processes = append(processes, Process{PID: int(info.Pid), OnlyRenders: true})
				}
				processes[place].add(info, lists.renders)
			}
		}
		return processes, nil
	})
}

// add adds what one list has of a process. Each list has all of its memory.
func (p *Process) add(info gonvml.ProcessInfo, renders bool) {
	const notAvailable = ^uint64(0)
	p.OnlyRenders = p.OnlyRenders && renders
	if info.UsedGpuMemory != notAvailable {
		p.UsedBytes, p.UsedKnown = max(p.UsedBytes, info.UsedGpuMemory), true
	}
}
