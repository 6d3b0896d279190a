package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// Labels on the containers, snapshots and leases that we create. They say what is ours, and whose.
const (
	labelPrefix    = "dev.tranche.nomad/"
	labelOwned     = labelPrefix + "driver"
	labelTaskID    = labelPrefix + "task-id"
	labelAllocID   = labelPrefix + "alloc-id"
	labelTask      = labelPrefix + "task"
	labelGroup     = labelPrefix + "group"
	labelJob       = labelPrefix + "job"
	labelNamespace = labelPrefix + "namespace"
	labelImage     = labelPrefix + "image"
	// labelAllocDir is the allocation's directory, by whose parent one agent's tasks are told from another's.
	labelAllocDir = labelPrefix + "alloc-dir"
	// labelKept is on containers of destroyed tasks that gc.container = false keeps for a look.
	labelKept = labelPrefix + "kept"
)

// maxIDLength is containerd's limit on the length of a container ID.
const maxIDLength = 76

var notInID = regexp.MustCompile(`[^A-Za-z0-9]+`)

// containerID names the container of a task. The same task ID always gives the same name, so that what an older life of
// the plugin left behind can be found; two tasks never share one.
func containerID(cfg *drivers.TaskConfig) string {
	sum := sha256.Sum256([]byte(cfg.ID))
	unique := hex.EncodeToString(sum[:4])
	readable := cfg.AllocID + "-" + cfg.Name
	if cfg.AllocID == "" {
		readable = cfg.Name
	}
	readable = notInID.ReplaceAllString(readable, "-")
	if most := maxIDLength - len(unique) - 1; len(readable) > most {
		readable = readable[:most]
	}
	return strings.Trim(strings.Trim(readable, "-")+"-"+unique, "-")
}

// labelled is a filter for what has all of the labels, which come as key, value, key, value.
func labelled(pairs ...string) string {
	var all []string
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, fmt.Sprintf("labels.%q==%q", pair[0], pair[1]))
	}
	return strings.Join(all, ",")
}

// labels are those of the task's container, snapshot and lease.
func labels(cfg *drivers.TaskConfig, image string) map[string]string {
	all := map[string]string{
		labelOwned:     PluginName,
		labelTaskID:    cfg.ID,
		labelAllocID:   cfg.AllocID,
		labelTask:      cfg.Name,
		labelGroup:     cfg.TaskGroupName,
		labelJob:       cfg.JobID,
		labelNamespace: cfg.Namespace,
		labelImage:     image,
		labelAllocDir:  cfg.AllocDir,
	}
	for key, value := range all {
		// containerd refuses labels of more than 4096 bytes, and an empty one says nothing.
		if value == "" || len(key)+len(value) > 4096 {
			delete(all, key)
		}
	}
	return all
}
