package spec

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/naming"
)

func TestAnnotations_OfRuntimesForPrivilegedTasks(t *testing.T) {
	task := &TaskConfig{Privileged: true, Annotations: Pairs{{"run.oci.keep_original_groups": "1"}}}
	must.NoError(t, task.checkLabels())
	task.Annotations = Pairs{{"io.containerd.runc.v2.group": "other"}}
	must.ErrorContains(t, task.checkLabels(), "io.containerd.runc.v2.group")
}

func TestContainerLabels(t *testing.T) {
	cfg := &drivers.TaskConfig{ID: "id", AllocID: "01234567-89ab", Name: "web", JobName: "shop", NodeName: "n1",
		NodeID: strings.Repeat("long", 2000)}
	options := &TaskConfig{Image: "busybox", Labels: Pairs{{"a": "b", extraLabelPrefix + "job_name": "mine"}}}
	got := ContainerLabels(cfg, options, &Config{ExtraLabels: []string{"job_*", "*alloc_id", "node_*", "task_group_name"}})
	must.Eq(t, "b", got["a"])
	must.Eq(t, "id", got[naming.TaskID])
	for name, want := range map[string]string{"job_name": "shop", "alloc_id": "01234567-89ab", "short_alloc_id": "01234567",
		"node_name": "n1"} {
		must.Eq(t, want, got[extraLabelPrefix+name])
	}
	for _, name := range []string{"task_name", "task_group_name", "job_id", "node_id"} { // not asked for, empty, too long
		must.MapNotContainsKey(t, got, extraLabelPrefix+name)
	}
}
