package claim

import "github.com/tranche-gpu/tranche/internal/proc"

// Alive reports whether a container's init process runs: the same process, in the same boot. A zombie does not. Where the
// kernel does not say, the container counts as living, since nothing may be taken from under one that is.
func Alive(c Container) bool {
	return proc.ID{PID: c.InitPID, StartTime: c.InitStartTime, BootID: c.BootID}.MayLive()
}
