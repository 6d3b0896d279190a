package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/internal/cli/private"
)

func TestRunPreparesTheCommand(t *testing.T) {
	tr := newTrial(t)
	tr.environ = append(tr.environ, "LD_LIBRARY_PATH=/opt/lib", "CUDA_VISIBLE_DEVICES=0,1", "KEEP=me")
	code, out, stderr := tr.run("--memory", "1GiB", "--gpu", "1", "--", "sh", "-c",
		`env; for f in "$TRANCHE_REGIONS"/*/*; do echo "FILE=$(od -An -tx1 -v -N136 "$f" | tr -d ' \n')"; done`)
	must.Eq(t, 0, code, must.Sprint(stderr))
	env := strings.Split(out, "\n")
	get := func(name string) string { value, _ := private.LookupEnv(env, name); return value }

	lib := filepath.Dir(strings.Split(get("LD_PRELOAD"), ":")[0])
	must.StrHasPrefix(t, tr.base(t), lib)
	must.Eq(t, lib+"/libcuda.so.1:"+lib+"/libnvidia-ml.so.1", get("LD_PRELOAD"))
	must.Eq(t, lib+":/opt/lib", get("LD_LIBRARY_PATH"))
	must.Eq(t, "0", get("CUDA_VISIBLE_DEVICES"), must.Sprint("programs take it for numbers, and there is one GPU"))
	must.Eq(t, nvmltest.H200(1).UUID, get("TRANCHE_VISIBLE_GPU"))
	must.Eq(t, filepath.Join(filepath.Dir(lib), "regions"), get("TRANCHE_REGIONS"))
	must.Eq(t, "me", get("KEEP"))
	must.Eq(t, 1, strings.Count(out, "CUDA_VISIBLE_DEVICES="))
	must.StrContains(t, out, "FILE="+fmt.Sprintf("%x", "TRNCLIM\x00"))
	must.StrContains(t, out, fmt.Sprintf("%x", nvmltest.H200(1).UUID))
	must.StrContains(t, out, "0000004000000000"+"0000c01200000000") // 1 GiB and 300 MiB, little-endian
	must.StrContains(t, out, "FILE="+fmt.Sprintf("%x", "TRNCUSE\x00"))

	must.SliceEmpty(t, tr.privateDirs(t))
}

// A program runs on the GPU that its caller's environment names, or says why not.
func TestRunTakesTheCallersGPU(t *testing.T) {
	for variable, name := range map[string]string{"CUDA_VISIBLE_DEVICES": "1", "NVIDIA_VISIBLE_DEVICES": nvmltest.H200(1).UUID} {
		tr := newTrial(t)
		tr.environ = append(tr.environ, variable+"="+name)
		code, out, stderr := tr.run("--memory", "1GiB", "--", "sh", "-c", `echo "$TRANCHE_VISIBLE_GPU $CUDA_VISIBLE_DEVICES"`)
		must.Eq(t, 0, code, must.Sprint(stderr))
		must.Eq(t, nvmltest.H200(1).UUID+" 0\n", out)
	}
	for list, want := range map[string]string{
		"0,1": "names 2 GPUs, and a command has one: name one with --gpu",
		"7":   "CUDA_VISIBLE_DEVICES: there is no GPU 7",
		"":    "names no GPU",
	} {
		tr := newTrial(t)
		tr.environ = append(tr.environ, "CUDA_VISIBLE_DEVICES="+list)
		code, _, stderr := tr.run("--memory", "1GiB", "--", "true")
		must.Eq(t, 125, code)
		must.StrContains(t, stderr, want)
	}
}

// gcc's AddressSanitizer ends programs that have another library before its own.
func TestRunSanitizedProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	source := filepath.Join(t.TempDir(), "program.c")
	must.NoError(t, os.WriteFile(source, []byte(`
#include <stdio.h>
#include <stdlib.h>
int main(void) { volatile char *p = malloc(1); puts("started"); fflush(stdout); p[1] = 0; return 0; }
`), 0o600))
	output, err := exec.Command("gcc", "-fsanitize=address", "-g", "-o", program, source).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(output)))
	for _, options := range []string{"", "exitcode=7", "exitcode=7:verify_asan_link_order=0"} {
		tr := newTrial(t)
		want := 1
		if options != "" {
			tr.environ = append(tr.environ, "ASAN_OPTIONS="+options)
			want = 7
		}
		code, out, stderr := tr.run("--memory", "1GiB", "--", program)
		must.Eq(t, "started\n", out, must.Sprint(stderr))
		must.Eq(t, want, code, must.Sprint(stderr))
		must.StrContains(t, stderr, "heap-buffer-overflow", must.Sprint("it still finds errors"))
	}
	tr := newTrial(t)
	tr.environ = append(tr.environ, "ASAN_OPTIONS=verify_asan_link_order=1")
	_, out, stderr := tr.run("--memory", "1GiB", "--", program)
	must.Eq(t, "", out, must.Sprint("the caller has asked for the check"))
	must.StrContains(t, stderr, "ASan runtime does not come first")
}

// A program of musl could not even start, and would not say why.
func TestRunProgramOfMusl(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	source := filepath.Join(dir, "program.c")
	must.NoError(t, os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600))
	output, err := exec.Command("gcc", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1", "-o", program, source).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(output)))
	script, nested, static := filepath.Join(dir, "script"), filepath.Join(dir, "nested"), filepath.Join(dir, "static")
	must.NoError(t, os.WriteFile(script, []byte("#! "+program+" -x\n"), 0o755))
	must.NoError(t, os.WriteFile(nested, []byte("#!"+script+"\n"), 0o755))
	for _, command := range []string{program, script, nested} {
		tr := newTrial(t)
		code, _, stderr := tr.run("--memory", "1GiB", "--", command)
		must.Eq(t, 126, code)
		must.StrContains(t, stderr, "cannot run "+command+": it is a program of musl")
		must.StrContains(t, stderr, "run it without `tranche run`")
		must.SliceEmpty(t, tr.privateDirs(t))
	}
	output, err = exec.Command("gcc", "-static", "-o", static, source).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(output)))
	tr := newTrial(t)
	code, _, stderr := tr.run("--memory", "1GiB", "--", static)
	must.Eq(t, 0, code, must.Sprint(stderr))
}

// Whatever name a program asks for, it gets the shadow, which has the driver behind it.
func TestRunPutsTheShadowInFront(t *testing.T) {
	tr := newTrial(t)
	code, out, stderr := tr.run("--memory", "1GiB", "--", tr.probe, "libcuda.so.1", "libcuda.so", "libcuda.so.570.124.06",
		"libnvidia-ml.so.1", "libnvidia-ml.so")
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.Eq(t, "", stderr)
	must.Eq(t, 5, strings.Count(out, " shadow\n"), must.Sprint(out))

	code, out, stderr = tr.run("--memory", "1GiB", "--", "sh", "-c",
		`LD_LIBRARY_PATH="${LD_PRELOAD%%/lib/*}/lib/.tranche:$LD_LIBRARY_PATH" LD_PRELOAD= "$0" libcuda.so.1 libnvidia-ml.so.1`,
		tr.probe)
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.Eq(t, "libcuda.so.1 shadow\nlibnvidia-ml.so.1 shadow\n", out)

	code, out, _ = tr.run("--memory", "1GiB", "--", "sh", "-c",
		`for f in "${LD_PRELOAD%%/lib/*}"/lib/.tranche/*; do readlink "$f"; done`)
	must.Eq(t, 0, code)
	must.StrContains(t, out, filepath.Join(tr.driverRoot, "usr/lib"))
	must.StrContains(t, out, "/libcuda.so.570.124.06\n")
	must.StrContains(t, out, "/libnvidia-ml.so.570.124.06\n")
}

func TestRunExitCode(t *testing.T) {
	tr := newTrial(t)
	notExecutable := filepath.Join(t.TempDir(), "data")
	must.NoError(t, os.WriteFile(notExecutable, []byte("x"), 0o644))
	badFormat := filepath.Join(t.TempDir(), "data")
	must.NoError(t, os.WriteFile(badFormat, []byte("x"), 0o755))
	for name, tc := range map[string]struct {
		command []string
		code    int
		stderr  string
	}{
		"success":        {[]string{"true"}, 0, ""},
		"failure":        {[]string{"sh", "-c", "echo oh no >&2; exit 7"}, 7, "oh no\n"},
		"killed":         {[]string{"sh", "-c", "kill -KILL $$"}, 137, ""},
		"terminated":     {[]string{"sh", "-c", "kill -TERM $$"}, 143, ""},
		"not found":      {[]string{"no-such-command"}, 127, "tranche: no command no-such-command: "},
		"no such file":   {[]string{"/no/such/file"}, 127, "tranche: no command /no/such/file: "},
		"not executable": {[]string{notExecutable}, 126, "tranche: cannot run " + notExecutable},
		"not a program":  {[]string{badFormat}, 126, "tranche: cannot run " + badFormat},
		"flags":          {[]string{"sh", "-c", "test $# = 2", "--", "--memory", "x"}, 0, ""},
	} {
		code, _, stderr := tr.run(append([]string{"--memory", "1GiB", "--"}, tc.command...)...)
		must.Eq(t, tc.code, code, must.Sprint(name))
		if tc.stderr == "" {
			must.Eq(t, "", stderr, must.Sprint(name))
		}
		must.StrContains(t, stderr, tc.stderr)
		must.SliceEmpty(t, tr.privateDirs(t))
	}
}

// The command's own flags are the command's, with and without the dashes before it.
func TestRunLeavesTheCommandItsFlags(t *testing.T) {
	tr := newTrial(t)
	code, out, stderr := tr.run("--memory", "1GiB", "echo", "--memory", "lots", "--", "--gpu")
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.Eq(t, "--memory lots -- --gpu\n", out)
}

func TestRunRefuses(t *testing.T) {
	emptyRoot := t.TempDir()
	for name, tc := range map[string]struct {
		change func(*trial)
		args   []string
		want   []string
	}{
		"no limit":        {nil, nil, []string{"--memory is missing", "512MiB"}},
		"a limit of 8G":   {nil, []string{"--memory", "8G"}, []string{`--memory: "8G" is not an amount`, "1GiB"}},
		"a limit too low": {nil, []string{"--memory", "200MiB"}, []string{"200MiB is less than the 300MiB", "CUDA context"}},
		"a rounded limit": {nil, []string{"--memory", "8GB"}, []string{"--memory: 8GB is not a whole number of MiB", "7630MiB"}},
		"an odd limit":    {nil, []string{"--memory", "1025MiB"}, []string{"--memory: 1025MiB is not a multiple of 2MiB"}},
		"odd host memory": {
			nil, []string{"--memory", "1GiB", "--host-memory", "1GB"}, []string{"--host-memory: 1GB is not a whole number"},
		},
		"too much":    {nil, []string{"--memory", "200GiB"}, []string{"200GiB is more than GPU 0", "143771MiB"}},
		"no such GPU": {nil, []string{"--memory", "1GiB", "--gpu", "2"}, []string{"there is no GPU 2", "1 (NVIDIA H200"}},
		"no NVML": {
			func(tr *trial) { tr.openNVML = func(root string) nvml.Interface { return nvml.New(root) } },
			[]string{"--memory", "1GiB", "--driver-root", emptyRoot},
			[]string{"no libnvidia-ml.so.1 in the driver root " + emptyRoot, "(searched /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 and ", "--driver-root"},
		},
		"no driver": {
			nil, []string{"--memory", "1GiB", "--driver-root", emptyRoot},
			[]string{"no libcuda.so.1 in the driver root " + emptyRoot, "(searched /usr/lib/x86_64-linux-gnu/libcuda.so.1 and "},
		},
		"no shadow": {
			nil, []string{"--memory", "1GiB", "--shadow-dir", emptyRoot},
			[]string{"no shadow library " + emptyRoot + "/libcuda.so.1"},
		},
		"the driver as shadow": {
			func(tr *trial) { tr.shadowDir = driverLibraries(tr) }, []string{"--memory", "1GiB"},
			[]string{"is no shadow library of Tranche"},
		},
		"a limit in a limit": {
			func(tr *trial) { tr.environ = append(tr.environ, "TRANCHE_REGIONS=/x") }, []string{"--memory", "1GiB"},
			[]string{"already under the limit of another"},
		},
		"NVML fails": {
			func(tr *trial) {
				fake := nvmltest.New()
				fake.SetError(errors.New("the driver is in a bad mood"))
				tr.openNVML = func(string) nvml.Interface { return fake }
			},
			[]string{"--memory", "1GiB"}, []string{"the driver is in a bad mood"},
		},
		"a directory for no preload": {
			func(tr *trial) { tr.runDir = filepath.Join(tr.runDir, "a b") }, []string{"--memory", "1GiB"},
			[]string{"a space or a colon"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t)
			if tc.change != nil {
				tc.change(tr)
			}
			mark := filepath.Join(t.TempDir(), "mark")
			code, _, stderr := tr.run(append(tc.args, "--", "touch", mark)...)
			must.Eq(t, exitOwnFailure, code)
			for _, want := range tc.want {
				must.StrContains(t, stderr, want)
			}
			must.StrHasPrefix(t, "tranche: ", stderr)
			must.FileNotExists(t, mark)
			must.SliceEmpty(t, tr.privateDirs(t))
		})
	}
}

func driverLibraries(tr *trial) string {
	found, err := filepath.Glob(filepath.Join(tr.driverRoot, "usr/lib/*/libcuda.so.1"))
	if err != nil || len(found) != 1 {
		panic(fmt.Sprint(found, err))
	}
	return filepath.Dir(found[0])
}

// start starts `tranche run` as a process of its own, whose command prints a line once it is ready.
func (tr *trial) start(t *testing.T, script string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", tr.runArgs("--memory", "1GiB", "--", "sh", "-c", script)...)
	cmd.Env = append(os.Environ(), "TRANCHE_TEST_CLI=1")
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	cmd.Stderr = os.Stderr
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }) // the command ends with it
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	t.Cleanup(func() { _ = out.Close() })
	return cmd, strings.TrimSpace(line)
}

func TestRunForwardsSignals(t *testing.T) {
	tr := newTrial(t)
	for _, s := range []struct {
		name   string
		signal syscall.Signal
	}{{"TERM", syscall.SIGTERM}, {"INT", syscall.SIGINT}, {"HUP", syscall.SIGHUP}, {"USR1", syscall.SIGUSR1}} {
		cmd, _ := tr.start(t, `trap 'kill -KILL $!; exit 42' `+s.name+`; sleep 1000 >&2 & echo ready; wait`)
		must.NoError(t, cmd.Process.Signal(s.signal))
		_ = cmd.Wait()
		must.Eq(t, 42, cmd.ProcessState.ExitCode(), must.Sprint(s.name))
	}
	cmd, _ := tr.start(t, `echo ready; exec sleep 1000`)
	must.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	must.Eq(t, 143, cmd.ProcessState.ExitCode())
}

// What the command leaves running keeps its limit: the directory stays until the last process is gone, whatever became
// of the descriptors, of the environment and of `tranche run` itself.
func TestRun_KeepsTheDirectoryForWhatRemains(t *testing.T) {
	const remain = `"$REMAINS" "$TRANCHE_REGIONS"/*/usage >"$READY" & read pid <"$READY"; echo $pid`
	ended := func(cmd *exec.Cmd) error { return cmd.Wait() }
	for name, tc := range map[string]struct {
		script string
		end    func(*exec.Cmd) error
	}{
		"a background job":                  {`sleep 1000 >/dev/null 2>&1 & echo $!`, ended},
		"one that has closed descriptors":   {"TRANCHE_TEST_CLI=closes " + remain, ended}, // as Python's subprocess does
		"one that has the region mapped":    {"env -i TRANCHE_TEST_CLI=maps " + remain, ended},
		"one whose `tranche run` is killed": {`TRANCHE_TEST_CLI=closes exec "$REMAINS" "$TRANCHE_REGIONS"/*/usage`, killed},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t)
			self, err := os.Executable()
			must.NoError(t, err)
			t.Setenv("REMAINS", self)
			t.Setenv("READY", filepath.Join(t.TempDir(), "ready"))
			must.NoError(t, unix.Mkfifo(os.Getenv("READY"), 0o600))

			cmd, pid := tr.start(t, tc.script)
			must.NoError(t, tc.end(cmd))
			must.Len(t, 1, tr.privateDirs(t))
			code, _, _ := tr.run("--memory", "1GiB", "--", "true")
			must.Eq(t, 0, code)
			must.Len(t, 1, tr.privateDirs(t))

			kill(t, pid)
			code, _, _ = tr.run("--memory", "1GiB", "--", "true")
			must.Eq(t, 0, code)
			must.SliceEmpty(t, tr.privateDirs(t))
		})
	}
}

// killed kills `tranche run` and leaves its command alone.
func killed(cmd *exec.Cmd) error {
	err := cmd.Process.Kill()
	_ = cmd.Wait()
	return err
}

// remain is a process that `tranche run` has left behind: one without descriptors, or one that has only the region mapped.
// It prints its process ID and waits to be killed.
func remain(mode, usage string) {
	if mode == "maps" {
		fd, err := unix.Open(usage, unix.O_RDONLY, 0)
		if err != nil {
			panic(err)
		}
		if _, err := unix.Mmap(fd, 0, region.UsageSize, unix.PROT_READ, unix.MAP_SHARED); err != nil {
			panic(err)
		}
	}
	if mode == "closes" {
		_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
		panic(unix.Exec("/bin/sh", []string{"sh", "-c", "echo $$; exec sleep 1000 >&-"}, os.Environ()))
	}
	fmt.Println(os.Getpid())
	_ = unix.Pause()
}

// kill ends a process that is no child of ours, and returns when it is gone.
func kill(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	must.NoError(t, err)
	fd, err := unix.PidfdOpen(n, 0)
	must.NoError(t, err)
	defer unix.Close(fd)
	must.NoError(t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	for {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	must.NoError(t, err)
}

func TestRunAsAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	const nobody = 65534
	tr := newTrial(t)
	own := filepath.Join("/tmp", fmt.Sprintf("tranche-cli-test-%d", os.Getpid()))
	must.NoError(t, os.Mkdir(own, 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	must.NoError(t, os.Chown(own, nobody, nobody))

	cmd := exec.Command("/proc/self/exe", tr.runArgs("--memory", "1GiB", "--", "sh", "-c", `echo "$TRANCHE_REGIONS"; id -u`)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + own, "XDG_RUNTIME_DIR=" + own, "TRANCHE_TEST_CLI=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must.NoError(t, err)
	must.StrHasPrefix(t, own+"/tranche/", string(out))
	must.StrHasSuffix(t, "\n65534\n", string(out))
	left, err := os.ReadDir(filepath.Join(own, "tranche"))
	must.NoError(t, err)
	must.SliceEmpty(t, left)
}

func TestRunPassesStreams(t *testing.T) {
	tr := newTrial(t)
	tr.stdin = strings.NewReader("hello\n")
	code, out, _ := tr.run("--memory", "1GiB", "--", "cat")
	must.Eq(t, 0, code)
	must.Eq(t, "hello\n", out)
}

func TestUsageIsReadWhileItRuns(t *testing.T) {
	tr := newTrial(t)
	reader, writer := io.Pipe()
	tr.stdin = reader
	ended := make(chan int)
	out, outWriter := io.Pipe()
	tr.stdout = outWriter
	go func() {
		ended <- tr.main(tr.runArgs("--memory", "2GiB", "--", "sh", "-c", `echo "$TRANCHE_REGIONS"/*; read x`))
	}()
	dir, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	u, err := region.Read(strings.TrimSpace(dir))
	must.NoError(t, err)
	must.Eq(t, 2<<30, u.LimitBytes)
	must.NoError(t, writer.Close())
	must.Eq(t, 1, <-ended)
}
