// Package naming has the names and labels of the driver's objects in containerd: containers, snapshots, leases and images.
// Older versions of the plugin find their containers by them, so they must not change.
package naming

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// PluginName is the driver's name in a jobspec, and the value of the label Owned.
const PluginName = "containerd"

// Labels of what the driver makes: that it is the driver's, and whose.
const (
	Prefix = "dev.tranche.nomad/"

	Owned     = Prefix + "driver"
	TaskID    = Prefix + "task-id"
	AllocID   = Prefix + "alloc-id"
	Task      = Prefix + "task"
	Group     = Prefix + "group"
	Job       = Prefix + "job"
	Namespace = Prefix + "namespace"
	Image     = Prefix + "image"
	// AllocDir is the allocation's directory. Its parent tells the tasks of one agent from those of another.
	AllocDir = Prefix + "alloc-dir"
	// Kept is on containers of destroyed tasks that gc.container = false keeps for inspection, with the value IsKept.
	Kept   = Prefix + "kept"
	IsKept = "true"
	// HostIDs is the range of host IDs of a container with a user namespace.
	HostIDs = Prefix + "host-ids"
	// Owner is on the leases of starts and pulls, and names the plugin process that took them. Agents that share a
	// containerd tell by it which leases are orphans.
	Owner = Prefix + "owner"
	// Pull is on the lease of a pull, and names the image.
	Pull = Prefix + "pulls"
	// UnusedSince is on the record of an image of ours that no task uses.
	UnusedSince = Prefix + "unused-since"
)

// maxIDLength is containerd's limit on the length of a container ID.
const maxIDLength = 76

// maxLabelLength is containerd's limit on the length of a label's name and value together.
const maxLabelLength = 4096

var notInID = regexp.MustCompile(`[^A-Za-z0-9]+`)

// ContainerID names the container of a task. A task ID always has the same name, so that a later plugin process finds its
// container; two tasks never share one.
func ContainerID(cfg *drivers.TaskConfig) string {
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

// Filter returns a containerd filter for what has all of the labels, given as name, value, name, value.
func Filter(pairs ...string) string {
	var all []string
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, fmt.Sprintf("labels.%q==%q", pair[0], pair[1]))
	}
	return strings.Join(all, ",")
}

// Labels returns the labels of the task's container, snapshots and lease.
func Labels(cfg *drivers.TaskConfig, image string) map[string]string {
	all := map[string]string{
		Owned:     PluginName,
		TaskID:    cfg.ID,
		AllocID:   cfg.AllocID,
		Task:      cfg.Name,
		Group:     cfg.TaskGroupName,
		Job:       cfg.JobID,
		Namespace: cfg.Namespace,
		Image:     image,
		AllocDir:  cfg.AllocDir,
	}
	for key, value := range all {
		if value == "" || len(key)+len(value) > maxLabelLength {
			delete(all, key)
		}
	}
	return all
}
