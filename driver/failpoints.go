package driver

// failpoint is a place between two steps that change something outside this process. A plugin process that dies there
// leaves behind what the steps before it made.
type failpoint string

// The failpoints of StartTask.
const (
	startOlderGone        failpoint = "start: older containers removed"
	startClaimsPrepared   failpoint = "start: claims prepared"
	startLeaseTaken       failpoint = "start: lease taken"
	startImageReady       failpoint = "start: image ready"
	startStorageReady     failpoint = "start: storage ready"
	startSnapshotMade     failpoint = "start: snapshot made"
	startContainerCreated failpoint = "start: container created"
	startTaskCreated      failpoint = "start: task created"
	startTaskStarted      failpoint = "start: task started"
	startAdopted          failpoint = "start: adopted"
	startLeaseGivenBack   failpoint = "start: lease given back"
)

// The failpoints of StopTask.
const (
	stopSignalSent failpoint = "stop: signal sent"
	stopKillSent   failpoint = "stop: kill sent"
	stopEnded      failpoint = "stop: ended"
)

// The failpoints of DestroyTask.
const (
	destroyTaskRemoved      failpoint = "destroy: task removed"
	destroyContainerRemoved failpoint = "destroy: container removed"
	destroySnapshotRemoved  failpoint = "destroy: snapshot removed"
	destroyLeaseRemoved     failpoint = "destroy: lease removed"
	destroyHandleRemoved    failpoint = "destroy: handle removed"
)

// Each call's failpoints in the order in which it reaches them, StopTask's of a task that has to be killed. Tests go
// through all of them.
var (
	startFailpoints = []failpoint{
		startOlderGone, startClaimsPrepared, startLeaseTaken, startImageReady, startStorageReady,
		startSnapshotMade, startContainerCreated, startTaskCreated, startTaskStarted, startAdopted, startLeaseGivenBack,
	}
	stopFailpoints    = []failpoint{stopSignalSent, stopKillSent, stopEnded}
	destroyFailpoints = []failpoint{
		destroyTaskRemoved, destroyContainerRemoved, destroySnapshotRemoved, destroyLeaseRemoved, destroyHandleRemoved,
	}
)

// reach calls what a test has set for failpoints; nothing otherwise.
func (d *Driver) reach(p failpoint) {
	if d.failpoints != nil {
		d.failpoints(p)
	}
}
