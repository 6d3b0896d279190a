package task

import (
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// Store has the tasks that this plugin process knows, by task ID. Make one with NewStore.
type Store struct {
	mu    sync.RWMutex
	tasks map[string]*Handle
}

// NewStore returns a store without tasks.
func NewStore() *Store { return &Store{tasks: map[string]*Handle{}} }

// Get returns the task with the ID.
func (s *Store) Get(taskID string) (*Handle, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h, ok := s.tasks[taskID]
	return h, ok
}

// Put adds a task.
func (s *Store) Put(h *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[h.Config.ID] = h
}

// Remove removes the task with the ID, if it is there.
func (s *Store) Remove(taskID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, taskID)
}

// All returns the tasks that are known now.
func (s *Store) All() []*Handle {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.tasks))
}

// Running returns the configurations of the tasks that run now.
func (s *Store) Running() []*drivers.TaskConfig {
	var running []*drivers.TaskConfig
	for _, h := range s.All() {
		if h.Exit() == nil {
			running = append(running, h.Config)
		}
	}
	return running
}

// ByContainer returns the task that runs in the container.
func (s *Store) ByContainer(id string) (*Handle, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, h := range s.tasks {
		if h.State.ContainerID == id {
			return h, true
		}
	}
	return nil, false
}

// HasContainer reports whether a task runs in the container.
func (s *Store) HasContainer(id string) bool {
	_, ok := s.ByContainer(id)
	return ok
}
