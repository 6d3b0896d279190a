// Package shadowtest makes files for tests that look like shadow libraries and hold nothing.
package shadowtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test/must"
)

// Write puts the shadow libraries into a directory. The last line of each says "shadow libcuda", "shadow libnvidia-ml",
// "shadow governed/libcuda" or "shadow compute/libcuda", for containers that have no other means to tell them from the driver's.
func Write(t *testing.T, dir string) {
	t.Helper()
	libraries, err := shadows()
	must.NoError(t, err)
	must.NoError(t, os.MkdirAll(dir, 0o755))
	for name, content := range libraries {
		file := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.NoError(t, os.WriteFile(file, content, 0o755))
	}
}

// shadows are the contents of the shadow libraries, made once: the compiler takes longer than most tests.
var shadows = sync.OnceValues(func() (map[string][]byte, error) {
	libraries := map[string][]byte{}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1", "governed/libcuda.so.1", "compute/libcuda.so.1"} {
		stem := strings.TrimSuffix(name, ".so.1")
		content, err := compile("", filepath.Base(name), "$ORIGIN/.tranche/driver-"+filepath.Base(stem)+".so")
		if err != nil {
			return nil, err
		}
		libraries[name] = append(content, "\nshadow "+stem+"\n"...)
	}
	return libraries, nil
})

// Library is the content of an empty ELF library with a SONAME and the given dependencies.
func Library(t *testing.T, soname string, dependencies ...string) []byte {
	t.Helper()
	content, err := compile("", soname, dependencies...)
	must.NoError(t, err)
	return content
}

// OfVersion is the content of an empty ELF library that states a version, as intercept.mk has it.
func OfVersion(t *testing.T, version string) []byte {
	t.Helper()
	content, err := compile(fmt.Sprintf(".section .tranche.version,\"a\"; .string %q\n", version), "libversion.so")
	must.NoError(t, err)
	return content
}

// compile makes a library of assembler text.
func compile(text, soname string, dependencies ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "tranche-shadowtest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var stubs []string
	for i, dependency := range dependencies {
		stub := filepath.Join(dir, fmt.Sprintf("stub%d.so", i))
		if err := link("", dependency, stub); err != nil {
			return nil, err
		}
		stubs = append(stubs, stub)
	}
	file := filepath.Join(dir, "library.so")
	if err := link(text, soname, file, stubs...); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

func link(text, soname, file string, dependencies ...string) error {
	args := []string{"-shared", "-nostdlib", "-Wl,--no-as-needed", "-Wl,-soname," + soname, "-o", file}
	cmd := exec.CommandContext(context.Background(), "gcc", append(append(args, dependencies...), "-x", "assembler", "-")...)
	cmd.Stdin = strings.NewReader(text)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, output)
	}
	return nil
}
