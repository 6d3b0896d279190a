//go:build e2e

package vm_test

import "testing"

// fill is a job whose program takes all memory that it gets.
func fill(name string, slices int) job {
	return job{name: name, image: probeImage, command: "gpu-probe", args: []string{"fill"}, slices: slices}
}

// checkLimit has a task at its limit.
func checkLimit(t *testing.T, m *machine) {
	alloc := m.start(t, fill("limit", 2))
	m.says(t, alloc.ID, `"computing"`)
	m.mustHoldExactly(t, m.pid(t, alloc.ID), 2*gib)
}
