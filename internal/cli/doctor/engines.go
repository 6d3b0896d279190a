package doctor

import (
	"context"
	"fmt"

	"github.com/tranche-gpu/tranche/internal/cli/install"
)

var engineChecks = []check{
	{"engines", "docker", engine("docker")},
	{"engines", "containerd", engine("containerd")},
	{"engines", "podman", engine("podman")},
}

// engine looks whether an engine that is there knows the runtime. That it need not: a node for Nomad's containerd driver
// has no use for it.
func engine(name string) func(context.Context, *Node) finding {
	return func(_ context.Context, n *Node) finding {
		if program, found := install.Program(name, n.Root); !found {
			return ok(program, "not installed")
		}
		file, runtimePath, err := install.Configured(name, n.Root)
		switch {
		case err != nil:
			return fault(file, err.Error(), "correct the file: "+name+" does not start with it either")
		case runtimePath == "":
			return ok(file, "does not name the runtime; where its containers are to get GPUs: tranche install %s", name)
		}
		if err := executable(runtimePath); err != nil {
			return fault(file, fmt.Sprintf("it names %s as runtime: %v", runtimePath, err), "tranche install "+name+
				" --runtime-path "+n.RuntimePath)
		}
		return ok(file, "names %s as runtime", runtimePath)
	}
}
