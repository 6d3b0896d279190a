package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/internal/cli/private"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// TestMain lets the test binary be the command line, for tests that need it as a process of its own: "real", or on two
// GPUs that only NVML knows of.
func TestMain(m *testing.M) {
	contextcost.ChildMain()
	switch os.Getenv("TRANCHE_TEST_CLI") {
	case "":
		code := m.Run()
		if l, err := buildLibraries(); err == nil {
			_ = os.RemoveAll(filepath.Dir(l.driverRoot))
		}
		os.Exit(code)
	case "closes", "maps":
		remain(os.Getenv("TRANCHE_TEST_CLI"), os.Args[1])
		return
	case "real":
		os.Exit(Main("v0.0.0-test", os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	a := testApp(nvmltest.New(nvmltest.H200(0), nvmltest.H200(1)))
	a.environ = os.Environ()
	a.stdin, a.stdout, a.stderr = os.Stdin, os.Stdout, os.Stderr
	os.Exit(a.main(os.Args[1:]))
}

const testContextBytes = 300 << 20

func testApp(library nvml.Interface) *app {
	return &app{
		version: "v0.0.0-test",
		stdin:   strings.NewReader(""), stdout: new(bytes.Buffer), stderr: new(bytes.Buffer),
		environ:  []string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere"},
		openNVML: func(string) nvml.Interface { return library },
		contextCost: func(context.Context, contextcost.Options, contextcost.GPU) (uint64, error) {
			return testContextBytes, nil
		},
	}
}

// libraries are a driver root and shadow libraries that say which is which.
type libraries struct{ driverRoot, shadowDir, probe string }

// buildLibraries is done once: the compiler takes longer than the tests.
var buildLibraries = sync.OnceValues(func() (libraries, error) {
	dir, err := os.MkdirTemp("", "tranche-cli-test")
	if err != nil {
		return libraries{}, err
	}
	l := libraries{
		driverRoot: filepath.Join(dir, "root"),
		shadowDir:  filepath.Join(dir, "shadow"),
		probe:      filepath.Join(dir, "probe"),
	}
	return l, l.build()
})

func (l libraries) build() error {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	drivers := filepath.Join(l.driverRoot, "usr/lib", triplet)
	stubs := filepath.Join(l.driverRoot, "stubs")
	builds := []string{filepath.Join(l.shadowDir, "governed"), filepath.Join(l.shadowDir, "compute")}
	for _, dir := range append(builds, drivers, l.shadowDir, stubs) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Dir(l.driverRoot), 0o755); err != nil { // for tests as another user
		return err
	}
	for _, soname := range private.Sonames {
		versioned := strings.TrimSuffix(soname, ".1") + ".570.124.06"
		stub := filepath.Join(stubs, soname)
		for _, args := range [][]string{
			{"-DWHICH=\"driver\"", "-Wl,-soname," + soname, "-o", filepath.Join(drivers, versioned)},
			{"-DWHICH=\"stub\"", "-Wl,-soname,$ORIGIN/" + shadow.Behind(soname), "-o", stub},
			{
				"-DWHICH=\"shadow\"", "-Wl,-soname," + soname, "-Wl,--no-as-needed", stub,
				"-o", filepath.Join(l.shadowDir, soname),
			},
		} {
			if err := gcc(append([]string{"-shared", "-fPIC", "testdata/library.c"}, args...)...); err != nil {
				return err
			}
		}
		if err := os.Symlink(versioned, filepath.Join(drivers, soname)); err != nil {
			return err
		}
	}
	for _, dir := range builds {
		if err := os.Link(filepath.Join(l.shadowDir, private.Sonames[0]), filepath.Join(dir, private.Sonames[0])); err != nil {
			return err
		}
	}
	return gcc("-o", l.probe, "testdata/probe.c", "-ldl")
}

func gcc(args ...string) error {
	cmd := exec.Command("gcc", args...)
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

func testLibraries(t *testing.T) libraries {
	t.Helper()
	l, err := buildLibraries()
	must.NoError(t, err)
	return l
}

// trial is one call of the command line.
type trial struct {
	*app
	libraries
	runDir string
}

func newTrial(t *testing.T) *trial {
	t.Helper()
	return &trial{
		app:       testApp(nvmltest.New(nvmltest.H200(0), nvmltest.H200(1))),
		libraries: testLibraries(t),
		runDir:    t.TempDir(),
	}
}

// runArgs are those of `tranche run` with everything in place.
func (tr *trial) runArgs(args ...string) []string {
	return append([]string{
		"run", "--driver-root", tr.driverRoot, "--shadow-dir", tr.shadowDir, "--run-dir", tr.runDir,
	}, args...)
}

func (tr *trial) run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	tr.stdout, tr.stderr = &out, &errs
	code = tr.main(tr.runArgs(args...))
	return code, out.String(), errs.String()
}

// base is where the private directories are.
func (tr *trial) base(t *testing.T) string {
	t.Helper()
	base, err := private.Base(tr.runDir, tr.environ)
	must.NoError(t, err)
	return base
}

func (tr *trial) privateDirs(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(tr.base(t), "*"))
	must.NoError(t, err)
	return dirs
}
