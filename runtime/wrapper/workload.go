package wrapper

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/bundle"
)

// workload returns what a container's claims are for, as its environment and its engine say: nothing of it is verified. It is for
// people, so what cannot be read is left out.
func (inv invocation) workload(env map[string]string, file *specFile) claim.Workload {
	w := claim.Workload{
		Namespace: env["NOMAD_NAMESPACE"], Job: env["NOMAD_JOB_ID"], ParentJob: env["NOMAD_JOB_PARENT_ID"],
		Group: env["NOMAD_GROUP_NAME"], Task: env["NOMAD_TASK_NAME"], Allocation: env["NOMAD_ALLOC_ID"],
		ContainerName: cmp.Or(annotatedName(file), inv.dockerName(file), inv.podmanName()),
	}
	return w.In(allocDir(file))
}

// allocDir returns the directory of the allocation of a task of another driver, which mounts a part of it; empty if there is none.
func allocDir(file *specFile) string {
	for _, mount := range file.spec.Mounts {
		if mount.Destination == "/alloc" && filepath.Base(mount.Source) == "alloc" {
			return filepath.Dir(mount.Source)
		}
	}
	return ""
}

// nameAnnotations are those in which nerdctl, containerd's CRI and CRI-O say a container's name.
var nameAnnotations = []string{"nerdctl/name", "io.kubernetes.cri.container-name", "io.kubernetes.container.name"}

func annotatedName(file *specFile) string {
	for _, name := range nameAnnotations {
		if value := file.spec.Annotations[name]; value != "" {
			return value
		}
	}
	return ""
}

// dockerName returns the name of a container of Docker's, which is in the file beside those that Docker mounts for DNS:
// <root>/containers/<ID>/config.v2.json.
func (inv invocation) dockerName(file *specFile) string {
	for _, mount := range file.spec.Mounts {
		if mount.Destination != "/etc/resolv.conf" && mount.Destination != "/etc/hosts" {
			continue
		}
		containers := filepath.Dir(filepath.Dir(mount.Source))
		if filepath.Base(containers) != "containers" {
			continue
		}
		config := bundle.File{What: "Docker's container", Kind: "container", Path: filepath.Join(containers, inv.id, "config.v2.json")}
		var container struct{ ID, Name string }
		if config.Read() == nil && config.Parse(&container) == nil && container.ID == inv.id {
			return strings.TrimPrefix(container.Name, "/")
		}
	}
	return ""
}

// podmanName returns the name of a container of Podman's or CRI-O's: their monitor has started this process.
func (inv invocation) podmanName() string {
	command, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getppid()) + "/cmdline")
	if err != nil {
		return ""
	}
	return inv.nameOfMonitor(strings.Split(string(command), "\x00"))
}

// nameOfMonitor returns the name in the command line of a container's monitor: conmon --cid ID … --name NAME.
func (inv invocation) nameOfMonitor(args []string) string {
	if filepath.Base(args[0]) != "conmon" || valueAfter(args, "-c", "--cid") != inv.id {
		return ""
	}
	return valueAfter(args, "-n", "--name")
}

// valueAfter returns the argument that follows a flag.
func valueAfter(args []string, flags ...string) string {
	for i, arg := range args[:len(args)-1] {
		if slices.Contains(flags, arg) {
			return args[i+1]
		}
	}
	return ""
}
