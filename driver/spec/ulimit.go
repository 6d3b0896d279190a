package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/docker/go-units"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ulimitForms says what the option ulimit may hold.
const ulimitForms = "the names are core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, " +
	"rttime, sigpending and stack, the values \"SOFT\" or \"SOFT:HARD\", -1 meaning no limit, such as nofile = \"1024:4096\""

// withUlimits sets the process's resource limits. Those that the task does not name are as containerd has them itself:
// the 1024 open files of its default spec are too few for many a server.
func withUlimits(options *TaskConfig) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		limits, err := options.rlimits()
		s.Process.Rlimits = limits
		return err
	})
}

// rlimits returns the task's ulimits as an OCI spec has them.
func (c *TaskConfig) rlimits() ([]specs.POSIXRlimit, error) {
	var limits []specs.POSIXRlimit
	all := c.Ulimit.Merged()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		limit, err := parseUlimit(name, all[name])
		if err != nil {
			return nil, fmt.Errorf("option ulimit: %s = %q: %w; %s", name, all[name], err, ulimitForms)
		}
		limits = append(limits, limit)
	}
	return limits, nil
}

func parseUlimit(name, value string) (specs.POSIXRlimit, error) {
	parsed, err := units.ParseUlimit(name + "=" + value)
	if err != nil {
		return specs.POSIXRlimit{}, err
	}
	if parsed.Soft < -1 || parsed.Hard < -1 {
		return specs.POSIXRlimit{}, errors.New("a limit is not negative, but for -1")
	}
	limit, err := parsed.GetRlimit()
	if err != nil {
		return specs.POSIXRlimit{}, err
	}
	return specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(parsed.Name), Soft: limit.Soft, Hard: limit.Hard}, nil
}

// checkUlimit checks the option ulimit.
func (c *TaskConfig) checkUlimit() error {
	_, err := c.rlimits()
	return err
}
