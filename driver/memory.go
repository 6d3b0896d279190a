package driver

import (
	"runtime/debug"
	"sync"
	"time"
)

// calmAfter is how long nothing has to happen until memory goes back to the system.
const calmAfter = 10 * time.Second

// calm gives memory back to the system when a while of many starts and removals is over. Go's runtime would do it too,
// but only with its next collections, and a plugin in which nothing happens makes none for minutes. The zero value is
// ready.
type calm struct {
	mu    sync.Mutex
	timer *time.Timer
}

// stir notes that something happens that takes memory.
func (c *calm) stir() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		c.timer = time.AfterFunc(calmAfter, debug.FreeOSMemory)
		return
	}
	c.timer.Reset(calmAfter)
}

// stop forgets it.
func (c *calm) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}
