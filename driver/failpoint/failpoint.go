// Package failpoint has the names of the driver's failpoints, at which tests end the plugin process or containerd. It must
// do nothing itself: the driver calls what a test has set.
package failpoint

// Point is a place between two steps that change something outside this process. A plugin process that dies there leaves
// behind what the steps before it made.
type Point string

// The failpoints of StartTask.
const (
	StartOlderGone        Point = "start: older containers removed"
	StartClaimsPrepared   Point = "start: claims prepared"
	StartLeaseTaken       Point = "start: lease taken"
	StartImageReady       Point = "start: image ready"
	StartStorageReady     Point = "start: storage ready"
	StartSnapshotMade     Point = "start: snapshot made"
	StartContainerCreated Point = "start: container created"
	StartTaskCreated      Point = "start: task created"
	StartTaskStarted      Point = "start: task started"
	StartAdopted          Point = "start: adopted"
	StartLeaseGivenBack   Point = "start: lease given back"
)

// The failpoints of StopTask.
const (
	StopSignalSent Point = "stop: signal sent"
	StopKillSent   Point = "stop: kill sent"
	StopEnded      Point = "stop: ended"
)

// The failpoints of DestroyTask.
const (
	DestroyTaskRemoved      Point = "destroy: task removed"
	DestroyContainerRemoved Point = "destroy: container removed"
	DestroySnapshotRemoved  Point = "destroy: snapshot removed"
	DestroyLeaseRemoved     Point = "destroy: lease removed"
	DestroyHandleRemoved    Point = "destroy: handle removed"
)

// The failpoints of each call in the order in which it reaches them, StopTask's of a task that has to be killed. Tests
// use all of them.
var (
	Start = []Point{
		StartOlderGone, StartClaimsPrepared, StartLeaseTaken, StartImageReady, StartStorageReady,
		StartSnapshotMade, StartContainerCreated, StartTaskCreated, StartTaskStarted, StartAdopted, StartLeaseGivenBack,
	}
	Stop    = []Point{StopSignalSent, StopKillSent, StopEnded}
	Destroy = []Point{
		DestroyTaskRemoved, DestroyContainerRemoved, DestroySnapshotRemoved, DestroyLeaseRemoved, DestroyHandleRemoved,
	}
)
