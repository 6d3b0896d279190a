package driver

import (
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// taskStore has the tasks that this plugin process knows, by task ID.
type taskStore struct {
	mu    sync.RWMutex
	tasks map[string]*taskHandle
}

func newTaskStore() *taskStore { return &taskStore{tasks: map[string]*taskHandle{}} }

func (s *taskStore) get(taskID string) (*taskHandle, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h, ok := s.tasks[taskID]
	return h, ok
}

func (s *taskStore) put(h *taskHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[h.cfg.ID] = h
}

func (s *taskStore) remove(taskID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, taskID)
}

// all returns the tasks that are known now.
func (s *taskStore) all() []*taskHandle {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.tasks))
}

// running returns the tasks that run now.
func (s *taskStore) running() []*drivers.TaskConfig {
	var running []*drivers.TaskConfig
	for _, h := range s.all() {
		if h.exit() == nil {
			running = append(running, h.cfg)
		}
	}
	return running
}

// byContainer returns the task that runs in the container.
func (s *taskStore) byContainer(id string) (*taskHandle, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, h := range s.tasks {
		if h.state.ContainerID == id {
			return h, true
		}
	}
	return nil, false
}

func (s *taskStore) hasContainer(id string) bool {
	_, ok := s.byContainer(id)
	return ok
}
