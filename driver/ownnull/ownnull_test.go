package ownnull_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/ownnull"
)

// The test binary is the program to which links lead.
func TestMain(m *testing.M) {
	if runtime, ok := ownnull.Runtime(os.Args[0]); ok {
		fmt.Fprintln(os.Stderr, ownnull.Become(runtime, os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// link makes a link by which this binary becomes the program.
func link(t *testing.T, program string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("TRANCHE_REQUIRE_ROOT") == "1" {
			t.Fatal("this test mounts a file system and needs root")
		}
		t.Skip("this test mounts a file system and needs root")
	}
	self, err := os.Executable()
	must.NoError(t, err)
	path, err := ownnull.Link(t.TempDir(), self, program)
	must.NoError(t, err)
	return path
}

func TestRuntime(t *testing.T) {
	for name, want := range map[string]string{
		"/run/tranche/own-null/usr/bin/crun": "/usr/bin/crun",
		"/run/tranche/own-null/crun":         "/crun",
		"/usr/bin/tranche-hook":              "",
		"tranche-hook":                       "",
		"/run/tranche/own-null/":             "",
		"":                                   "",
	} {
		got, ok := ownnull.Runtime(name)
		must.Eq(t, want != "", ok, must.Sprint(name))
		if ok {
			must.Eq(t, want, got)
		}
	}
}

func TestLink(t *testing.T) {
	dir := t.TempDir()
	for _, helper := range []string{"/old/tranche-hook", "/old/tranche-hook", "/new/tranche-hook"} {
		link, err := ownnull.Link(dir, helper, "/usr/bin/crun")
		must.NoError(t, err)
		must.Eq(t, filepath.Join(dir, "own-null/usr/bin/crun"), link)
		to, err := os.Readlink(link)
		must.NoError(t, err)
		must.Eq(t, helper, to)
		entries, err := os.ReadDir(filepath.Dir(link))
		must.NoError(t, err)
		must.Len(t, 1, entries)
	}
	_, err := ownnull.Link("/dev/null", "/h", "/usr/bin/crun")
	must.ErrorContains(t, err, "/dev/null")
}

// What the runtime sees: a null device that is not the host's, with the permissions of that, which it may give away.
func TestBecome(t *testing.T) {
	const show = `seen=$(for fd in 0 1 2; do stat -L -c "%d %t:%T %a" /proc/$$/fd/$fd; done); echo "$seen" >&3
		echo lost; chown 5:5 /proc/$$/fd/0; head -c 1 | wc -c >&3; echo "$0 $*" >&3; exit 7`
	out, in, err := os.Pipe()
	must.NoError(t, err)
	cmd := exec.Command(link(t, "/bin/sh"), "-c", show, "name", "argument")
	cmd.ExtraFiles = []*os.File{in}
	must.ErrorContains(t, cmd.Run(), "exit status 7")
	must.NoError(t, in.Close())
	said := make([]byte, 4096)
	n, err := out.Read(said)
	must.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(said[:n])), "\n")
	must.Len(t, 5, lines, must.Sprint(lines))
	host := hostNull(t)
	for _, line := range lines[:3] {
		must.Eq(t, lines[0], line)
		must.StrHasSuffix(t, " 1:3 666", line)
		must.StrNotHasPrefix(t, fmt.Sprintf("%d ", host.Dev), line)
	}
	must.Eq(t, []string{"0", "name argument"}, lines[3:])
	must.Eq(t, host.Uid, hostNull(t).Uid)
	must.Eq(t, host.Gid, hostNull(t).Gid)
}

func hostNull(t *testing.T) unix.Stat_t {
	t.Helper()
	var stat unix.Stat_t
	must.NoError(t, unix.Stat(os.DevNull, &stat))
	return stat
}

// Streams that are something else, or nothing, stay what they are.
func TestBecome_OtherStreams(t *testing.T) {
	cmd := exec.Command(link(t, "/bin/sh"), "-c", "cat; readlink /proc/self/fd/2; exec 2>&-; ls /proc/self/fd/")
	cmd.Stdin = strings.NewReader("typed\n")
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	must.NoError(t, err)
	defer file.Close()
	cmd.Stderr = file
	said, err := cmd.Output()
	must.NoError(t, err)
	must.StrHasPrefix(t, "typed\n"+file.Name()+"\n0\n1\n", string(said))
}

func TestBecome_Fails(t *testing.T) {
	said, err := exec.Command(link(t, "/no/such/crun"), "create").CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(said), "run the OCI runtime /no/such/crun: no such file or directory")
}
