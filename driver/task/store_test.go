package task

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestStore(t *testing.T) {
	s := NewStore()
	web := New(nil, &drivers.TaskConfig{ID: "web"}, State{ContainerID: "c-web"})
	ended := New(nil, &drivers.TaskConfig{ID: "ended"}, State{ContainerID: "c-ended"})
	ended.finish(&drivers.ExitResult{}, time.Now())
	s.Put(web)
	s.Put(ended)
	must.Len(t, 2, s.All())
	must.Eq(t, []*drivers.TaskConfig{web.Config}, s.Running())
	h, ok := s.ByContainer("c-ended")
	must.True(t, ok)
	must.Eq(t, ended, h)
	s.Remove("ended")
	must.False(t, s.HasContainer("c-ended"))
	_, ok = s.Get("ended")
	must.False(t, ok)
}
