package install_test

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// commands are those of a section of docs/install.md, in the order of the page.
func commands(t *testing.T, section string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/install.md")
	must.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "\n## "+section+"\n")
	must.True(t, found, must.Sprint("the page has no section ", section))
	text, _, _ := strings.Cut(rest, "\n## ")
	var script strings.Builder
	for i, block := range strings.Split(text, "```") {
		if body, isCommand := strings.CutPrefix(block, "sh\n"); i%2 == 1 && isCommand {
			script.WriteString(body)
		}
	}
	must.NotEq(t, "", script.String())
	return script.String()
}

// The page's commands for Docker, from installing to taking it all back, run as they stand there, on a machine that is
// this one with a simulated driver: its file system is a layer over this one's, gone with the test. What is not as on the
// page is in testdata/page.sh.
func TestInstallPageForDocker(t *testing.T) {
	realEngine(t, "dockerd", "docker", "containerd", "runc")
	script := "set -eux\n" + commands(t, "Docker") + commands(t, "Check the node") + "ls /usr/lib/tranche\n" +
		commands(t, "What was changed") + "docker info --format '{{json .Runtimes}}'\n"
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o644))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "image.tar"), debian(t), 0o644))
	build, err := filepath.Abs(os.Getenv("TRANCHE_BUILD"))
	must.NoError(t, err)
	topology, err := filepath.Abs("../../../e2e/simgpu/topologies/h200x2.conf")
	must.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child",
		"sh", "testdata/page.sh", dir, build, topology)
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))

	text := string(out)
	must.StrContains(t, text, `{"path":"/usr/bin/tranche-runtime"}`)
	must.StrContains(t, text, "/ 2048MiB") // of nvidia-smi, in the container
	must.StrContains(t, text, " 0 faults\n")
	must.StrContains(t, text, "libcuda.so.1\nlibnvidia-ml.so.1\n")
	_, after, _ := strings.Cut(text, "+ tranche uninstall --files\n")
	must.StrContains(t, after, "removed /usr/bin/tranche-hook\n")
	must.StrContains(t, after, `{"io.containerd.runc.v2":`)
	must.StrNotContains(t, after, `"tranche":`)
	_, err = os.Stat("/usr/lib/tranche")
	must.ErrorIs(t, err, os.ErrNotExist, must.Sprint("the test has written to this machine"))
}

// debian is as much of an image of Debian as nvidia-smi needs: a C library and a directory /etc.
func debian(t *testing.T) []byte {
	t.Helper()
	archive := new(bytes.Buffer)
	w := tar.NewWriter(archive)
	must.NoError(t, w.WriteHeader(&tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}))
	must.NoError(t, w.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}))
	for _, file := range []string{
		"/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libdl.so.2",
		"/lib/x86_64-linux-gnu/libpthread.so.0", "/lib/x86_64-linux-gnu/libm.so.6", "/lib/x86_64-linux-gnu/librt.so.1",
		"/sbin/ldconfig", "/bin/sh",
	} {
		content, err := os.ReadFile(file)
		must.NoError(t, err)
		must.NoError(t, w.WriteHeader(&tar.Header{Name: file[1:], Mode: 0o755, Size: int64(len(content))}))
		_, err = w.Write(content)
		must.NoError(t, err)
	}
	must.NoError(t, w.Close())
	return archive.Bytes()
}
