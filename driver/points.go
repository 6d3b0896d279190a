package driver

// point is a moment between two steps that change something outside this process. Whoever dies there leaves behind
// what the steps before it made.
type point string

// The points of StartTask.
const (
	startOlderGone        point = "start: older lives removed"
	startClaimsPrepared   point = "start: claims prepared"
	startLeaseTaken       point = "start: lease taken"
	startImageReady       point = "start: image ready"
	startStorageReady     point = "start: storage ready"
	startSnapshotMade     point = "start: snapshot made"
	startContainerCreated point = "start: container created"
	startTaskCreated      point = "start: task created"
	startTaskStarted      point = "start: task started"
	startAdopted          point = "start: adopted"
	startLeaseGivenBack   point = "start: lease given back"
)

// The points of StopTask.
const (
	stopSignalSent point = "stop: signal sent"
	stopKillSent   point = "stop: kill sent"
	stopEnded      point = "stop: ended"
)

// The points of DestroyTask.
const (
	destroyTaskRemoved      point = "destroy: task removed"
	destroyContainerRemoved point = "destroy: container removed"
	destroySnapshotRemoved  point = "destroy: snapshot removed"
	destroyLeaseRemoved     point = "destroy: lease removed"
	destroyForgotten        point = "destroy: forgotten"
)

// Each call's points in the order in which it passes them, StopTask's of a task that has to be killed. Tests go through
// all of them.
var (
	startPoints = []point{
		startOlderGone, startClaimsPrepared, startLeaseTaken, startImageReady, startStorageReady,
		startSnapshotMade, startContainerCreated, startTaskCreated, startTaskStarted, startAdopted, startLeaseGivenBack,
	}
	stopPoints    = []point{stopSignalSent, stopKillSent, stopEnded}
	destroyPoints = []point{
		destroyTaskRemoved, destroyContainerRemoved, destroySnapshotRemoved, destroyLeaseRemoved, destroyForgotten,
	}
)

// at passes a point. Only a test has put something there.
func (d *Driver) at(p point) {
	if d.points != nil {
		d.points(p)
	}
}
