package wrapper_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// failure is a way in which runc and crun fail to create a container.
type failure struct {
	spoil func(n *node, id string, spec map[string]any)
	says  string
	// bound reports whether our hook has run by then. runc runs the hooks at poststop in any case, crun in none.
	bound bool
}

var failures = map[string]failure{
	"its program does not exist": {spoil: func(_ *node, _ string, spec map[string]any) {
		spec["process"].(map[string]any)["args"] = []string{"/no/such/program"}
	}, says: "/no/such/program", bound: true},
	// The hook says so itself: crun reads once more from the process that it has killed, and if that fails it reports this
	// ("read from the init process") and not the hook's failure.
	"a hook after ours fails": {spoil: func(n *node, id string, spec map[string]any) {
		runtimetest.WriteFile(n.t, n.path("fails"), "#!/bin/sh\necho the hook fails >>\"$1\"\nexit 1\n")
		spec["hooks"] = map[string]any{"createRuntime": []any{map[string]any{
			"path": n.path("fails"), "args": []string{"fails", n.path(id + ".out")},
		}}}
	}, says: "the hook fails", bound: true},
	"a mount fails": {spoil: func(_ *node, _ string, spec map[string]any) {
		spec["mounts"] = append(spec["mounts"].([]any), map[string]any{
			"destination": "/data", "type": "bind", "source": "/no/such/directory", "options": []string{"bind"},
		})
	}, says: "/no/such/directory"},
}

// createFails tries to create a container that cannot be, and deletes it as container engines do.
func (n *node) createFails(id, bundle string, how failure) {
	n.t.Helper()
	n.edit(bundle, func(spec map[string]any) { how.spoil(n, id, spec) })
	must.Error(n.t, n.create(id, bundle))
	must.StrContains(n.t, n.output(id), how.says)
	_ = n.oci("delete", "--force", id).Run() // some runtimes know of no such container any more
}

// listed is the state in which `tranche claim list` shows a claim, or "" for one that it does not show.
func (n *node) listed(id string) string {
	n.t.Helper()
	out := n.must(n.cli("claim", "list", "--json", "--state-dir", n.cfg.StateDir, "--run-dir", n.cfg.RunDir))
	var list struct {
		Claims []struct{ ID, State string }
	}
	must.NoError(n.t, json.Unmarshal([]byte(out), &list))
	for _, c := range list.Claims {
		if c.ID == id {
			return c.State
		}
	}
	return ""
}

// What a container asked for that could not be created is free at once: whoever mends his command line and tries again
// gets it, and so does Nomad.
func TestContainer_RequestsAndFailsToStart(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		for name, failure := range failures {
			t.Run(next+"/"+name, func(t *testing.T) {
				n := newContainerNode(t, next)
				n.knowsGPUs()
				all := []string{"TRANCHE_GPU_MEMORY=140GiB", "TRANCHE_GPU=0"}
				n.createFails("c1", n.image(n.bundle("b", "echo first", all...)), failure)
				for _, c := range n.claims() {
					must.Eq(t, "ended", n.listed(c.ID))
				}

				again := n.image(n.bundle("b2", "echo second", all...))
				must.Eq(t, "second\n", n.must(n.oci("run", "--bundle", again, "c1")))
				must.SliceEmpty(t, n.claims())

				n.createFails("c2", n.image(n.bundle("b3", "echo third", all...)), failure)
				made, _ := n.reserve(runtimetest.GPU0, "slice-000")
				must.Eq(t, []*claim.Claim{made}, n.claims())
				n.createFails("c3", n.image(n.bundle("b4", "echo fourth", "TRANCHE_GPU_MEMORY=8GiB", "TRANCHE_GPU=1")), failure)
				_, err := n.ledger.Sweep(t.Context())
				must.NoError(t, err)
				must.Len(t, 1, n.claims())
			})
		}
	}
}

// Nomad starts a task again by the same claim, and it is there, whether the runtime said that the container is gone or not.
func TestContainer_FailsToStartWithAClaimOfNomad(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		for name, failure := range failures {
			t.Run(next+"/"+name, func(t *testing.T) {
				n := newContainerNode(t, next)
				made, env := n.reserve(runtimetest.GPU0, "slice-000")
				n.createFails("c1", n.image(n.bundle("b", "echo first", env)), failure)
				want := "reserved" // as before, since Nomad's claims wait for their container
				if failure.bound {
					want = "dormant"
				}
				must.Eq(t, want, n.listed(made.ID))

				must.Eq(t, "second\n", n.must(n.oci("run", "--bundle", n.image(n.bundle("b2", "echo second", env)), "c2")))
				must.Nil(t, n.holder(made.ID))
				n.createFails("c3", n.image(n.bundle("b3", "echo third", env)), failure)
				other, _ := n.reserve(runtimetest.GPU0, "slice-000")
				must.Eq(t, []*claim.Claim{other}, n.claims(), must.Sprint("slices that nobody has were not reserved anew"))
			})
		}
	}
}

// What a container asked for is kept for it as long as its runtime builds it.
func TestContainer_RequestsWhileAnotherStarts(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			n.knowsGPUs()
			all := []string{"TRANCHE_GPU_MEMORY=140GiB", "TRANCHE_GPU=0"}
			first := n.image(n.bundle("b", "echo first", all...))
			must.NoError(t, syscall.Mkfifo(n.path("reached"), 0o600))
			must.NoError(t, syscall.Mkfifo(n.path("go on"), 0o600))
			runtimetest.WriteFile(t, n.path("waits"), "#!/bin/sh\ncd \"${0%/*}\" && echo >reached && read -r _ <'go on'\n")
			n.edit(first, func(spec map[string]any) {
				spec["hooks"] = map[string]any{"prestart": []any{map[string]any{"path": n.path("waits")}}} // before ours
			})
			created := make(chan error, 1)
			go func() { created <- n.create("c1", first) }()
			readFile(t, n.path("reached"))

			made := n.localClaim()
			must.Nil(t, made.Container)
			must.Eq(t, "reserved", n.listed(made.ID))
			message := n.fails(n.oci("run", "--bundle", n.image(n.bundle("b2", "echo second", all...)), "c2"))
			must.StrContains(t, message, "has 0 of 140 slices free")
			_, err := n.ledger.Sweep(t.Context())
			must.NoError(t, err)

			runtimetest.WriteFile(t, n.path("go on"), "\n")
			must.NoError(t, <-created, must.Func(func() string { return n.output("c1") }))
			must.Eq(t, "c1", n.holder(made.ID).ID)
			must.Nil(t, n.localClaim().Starter)
		})
	}
}

// cli is a command of tranche.
func (n *node) cli(args ...string) *exec.Cmd {
	cmd := exec.Command(n.cfg.CLIPath, args...)
	cmd.Stdin = strings.NewReader("")
	return cmd
}
