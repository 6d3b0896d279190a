package spec

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	labelrules "github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/driver/naming"
)

// extraLabelPrefix is what the names of extra_labels get in front, as the docker driver has them.
const extraLabelPrefix = "com.hashicorp.nomad."

// Keys that containerd, or this driver, acts upon. With them a job could keep content from being collected, have
// containerd start a program for its logs, or join the shim of another task's container.
var reservedKeys = []string{"dev.tranche.", "containerd.io/", "io.containerd.", "io.cri-containerd", "io.kubernetes."}

// Annotations that a runtime acts upon as root: crun opens files of the host, runc with systemd sets properties of units,
// CDI adds devices, Kata and gVisor change what separates a container from the host.
var runtimeAnnotations = []string{"run.oci.", "org.systemd.", "org.criu.", "cdi.k8s.io/", "io.katacontainers.",
	"dev.gvisor."}

// withAnnotations puts the task's annotations into the spec.
func withAnnotations(options *TaskConfig) oci.SpecOpts {
	return oci.WithAnnotations(options.Annotations.Merged())
}

// ContainerLabels returns the labels of the task's container: its own, those that the operator's extra_labels pick, and the
// driver's.
func ContainerLabels(cfg *drivers.TaskConfig, options *TaskConfig, plugin *Config) map[string]string {
	all := options.Labels.Merged()
	maps.Copy(all, extraLabels(cfg, plugin.ExtraLabels))
	maps.Copy(all, naming.Labels(cfg, options.Image))
	return all
}

// labelFacts returns what extra_labels can pick.
func labelFacts(cfg *drivers.TaskConfig) map[string]string {
	return map[string]string{
		"job_name":        cfg.JobName,
		"job_id":          cfg.JobID,
		"parent_job_id":   cfg.ParentJobID,
		"task_group_name": cfg.TaskGroupName,
		"task_name":       cfg.Name,
		"namespace":       cfg.Namespace,
		"node_name":       cfg.NodeName,
		"node_id":         cfg.NodeID,
		"alloc_id":        cfg.AllocID,
		"short_alloc_id":  cfg.AllocID[:min(8, len(cfg.AllocID))],
	}
}

// extraLabels returns the facts that a pattern matches, and that the task has.
func extraLabels(cfg *drivers.TaskConfig, patterns []string) map[string]string {
	picked := map[string]string{}
	for name, value := range labelFacts(cfg) {
		if value != "" && labelrules.Validate(extraLabelPrefix+name, value) == nil && matchesAny(patterns, name) {
			picked[extraLabelPrefix+name] = value
		}
	}
	return picked
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return err == nil && ok
	})
}

// checkExtraLabels refuses patterns that pick nothing: they are mistyped.
func (c *Config) checkExtraLabels() error {
	names := slices.Sorted(maps.Keys(labelFacts(&drivers.TaskConfig{})))
	for _, pattern := range c.ExtraLabels {
		if !slices.ContainsFunc(names, func(name string) bool { return matchesAny([]string{pattern}, name) }) {
			return fmt.Errorf("plugin option extra_labels: %q matches none of %s", pattern, strings.Join(names, ", "))
		}
	}
	return nil
}

// checkLabels checks the options labels and annotations.
func (c *TaskConfig) checkLabels() error {
	errs := []error{checkKeys("labels", c.Labels.Merged(), reservedKeys)}
	refused := reservedKeys
	if !c.Privileged {
		refused = slices.Concat(reservedKeys, runtimeAnnotations)
	}
	annotations := c.Annotations.Merged()
	maps.DeleteFunc(annotations, func(key, _ string) bool { return gpu.IsRequestAnnotation(key) }) // gpu.CheckOptions refuses it.
	return errors.Join(append(errs, checkKeys("annotations", annotations, refused))...)
}

// checkKeys checks keys and values, whose size containerd bounds. Values may be long, and are not shown.
func checkKeys(option string, all map[string]string, refused []string) error {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if key == "" {
			return fmt.Errorf("option %s: a key is empty; it must name what the value is", option)
		}
		for _, prefix := range refused {
			if strings.HasPrefix(key, prefix) {
				return fmt.Errorf("option %s: %q: keys that begin with %q are containerd's, the runtimes' or this driver's "+
					"own; use another", option, key, prefix)
			}
		}
		if err := labelrules.Validate(key, all[key]); err != nil {
			return fmt.Errorf("option %s: %w; key and value together must not be longer than 4096 bytes", option, err)
		}
	}
	return nil
}
