package wrapper

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestParseInvocation(t *testing.T) {
	cases := []struct {
		args string
		want invocation
	}{
		{"", invocation{}},
		{"--version", invocation{}},
		{"create c1", invocation{subcommand: "create", id: "c1"}},
		{"create --bundle /b c1", invocation{subcommand: "create", id: "c1", bundle: "/b"}},
		{"create --bundle=/b c1", invocation{subcommand: "create", id: "c1", bundle: "/b"}},
		{"create -b /b c1", invocation{subcommand: "create", id: "c1", bundle: "/b"}},
		{"create -b=/b c1", invocation{subcommand: "create", id: "c1", bundle: "/b"}},
		{"create -b/b c1", invocation{subcommand: "create", id: "c1", bundle: "/b"}},
		{"run -db /b c1", invocation{subcommand: "run", id: "c1", bundle: "/b"}},
		{"run -db/b c1", invocation{subcommand: "run", id: "c1", bundle: "/b"}},
		{"run -detach -debug -b /b c1", invocation{subcommand: "run", id: "c1", bundle: "/b"}},
		{"create -bundle /b c1", invocation{subcommand: "create", id: "c1", bundle: "/b"}},
		{"create c1 --bundle /b", invocation{subcommand: "create", id: "c1", bundle: "/b"}},
		{"run -d --pid-file create -b /b -- c1", invocation{subcommand: "run", id: "c1", bundle: "/b"}},
		{
			"--root /run/c --log /b/log.json --log-format json --systemd-cgroup create --bundle /b --pid-file /b/pid c1",
			invocation{subcommand: "create", id: "c1", bundle: "/b", log: "/b/log.json", logFormat: "json"},
		},
		{
			"--root=/run/c --log=/b/log --log-format=text --debug run --keep --preserve-fds 3 --console-socket /s c1",
			invocation{subcommand: "run", id: "c1", log: "/b/log", logFormat: "text"},
		},
		{"--cgroup-manager create --root run start c1", invocation{subcommand: "start"}},
		{"--future-flag value create -b /b c1", invocation{subcommand: "create", id: "c1", bundle: "/b"}},
		{
			"create --config other.json -b /b c1",
			invocation{subcommand: "create", id: "c1", bundle: "/b", specFile: "other.json"},
		},
		{"delete --force create", invocation{subcommand: "delete"}},
		{"exec --process /b/p.json c1 create -b /x", invocation{subcommand: "exec", id: "c1", process: "/b/p.json"}},
		{"exec c1 cmd --process /x", invocation{subcommand: "exec", id: "c1"}},
		{"exec --env A=1 --cwd / -t c1 -p /x", invocation{subcommand: "exec", id: "c1"}},
		{"exec -p /p --detach -u 1:1 -g 5 c1", invocation{subcommand: "exec", id: "c1", process: "/p"}},
		{"exec -e --process -c -p c1", invocation{subcommand: "exec", id: "c1"}},
		{"exec -p/p c1", invocation{subcommand: "exec", id: "c1", process: "/p"}},
		{"exec -dtp /p c1", invocation{subcommand: "exec", id: "c1", process: "/p"}},
		{"exec -p /old --process=/p -- c1", invocation{subcommand: "exec", id: "c1", process: "/p"}},
		{"exec --process-label l --pid-file /f --process /p c1", invocation{subcommand: "exec", id: "c1", process: "/p"}},
		{
			"--root /r --log /l --log-format json exec --process /tmp/runc-process1 --console-socket /s --pid-file /f c1",
			invocation{subcommand: "exec", id: "c1", process: "/tmp/runc-process1", log: "/l", logFormat: "json"},
		},
		{"exec --process", invocation{subcommand: "exec"}},
		{"create --bundle", invocation{subcommand: "create"}},
	}
	for _, tc := range cases {
		t.Run(tc.args, func(t *testing.T) {
			must.Eq(t, tc.want, parseInvocation(strings.Fields(tc.args)))
		})
	}
}

func TestInvocation_SpecPath(t *testing.T) {
	must.Eq(t, "config.json", invocation{}.specPath())
	must.Eq(t, "/b/config.json", invocation{bundle: "/b/"}.specPath())
	must.Eq(t, "/b/x.json", invocation{bundle: "/b", specFile: "x.json"}.specPath())
	must.Eq(t, "/x.json", invocation{bundle: "/b", specFile: "/x.json"}.specPath())
}
