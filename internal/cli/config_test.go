package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// configured is a command line on a node whose configuration says where everything is.
func configured(t *testing.T, library nvml.Interface) (a *app, stateDir string) {
	t.Helper()
	dir := t.TempDir()
	a = testApp(library)
	a.configFile = filepath.Join(dir, "config.toml")
	stateDir = filepath.Join(dir, "state")
	must.NoError(t, os.WriteFile(a.configFile, []byte("state_dir = \""+stateDir+"\"\nrun_dir = \""+dir+"/run\"\n"+
		"driver_root = \"/nowhere\"\nslice_memory = \"512MiB\"\n"), 0o644))
	return a, stateDir
}

func execute(a *app, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	a.stdout, a.stderr = &out, &errs
	return a.main(args), out.String(), errs.String()
}

func TestConfig_EveryCommandFollowsIt(t *testing.T) {
	var asked string
	a, stateDir := configured(t, nvmltest.New(nvmltest.H200(0)))
	library := a.openNVML
	a.openNVML = func(driverRoot string) nvml.Interface { asked = driverRoot; return library(driverRoot) }

	code, out, stderr := execute(a, "status")
	must.Zero(t, code, must.Sprint(stderr))
	must.StrContains(t, out, "512MiB each")
	must.Eq(t, "/nowhere", asked)
	_, out, _ = execute(a, "doctor")
	must.StrContains(t, out, stateDir)

	// The command line has precedence, as has TRANCHE_CONFIG over the usual file.
	_, out, _ = execute(a, "status", "--slice-memory", "2GiB", "--driver-root", "/elsewhere")
	must.StrContains(t, out, "2GiB each")
	must.Eq(t, "/elsewhere", asked)
	other := filepath.Join(t.TempDir(), "other.toml")
	must.NoError(t, os.WriteFile(other, []byte("driver_root = \"/other\"\nstate_dir = \""+stateDir+"\"\n"), 0o644))
	a.environ = append(a.environ, "TRANCHE_CONFIG="+other)
	_, out, _ = execute(a, "status")
	must.StrContains(t, out, "1GiB each")
	must.Eq(t, "/other", asked)
}

func TestConfig_Wrong(t *testing.T) {
	a, _ := configured(t, nvmltest.New())
	must.NoError(t, os.WriteFile(a.configFile, []byte("stat_dir = \"/x\"\n"), 0o644))
	code, _, stderr := execute(a, "claim", "list")
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, "there is no setting called stat_dir")
	code, out, _ := execute(a, "doctor")
	must.Eq(t, exitFailure, code)
	must.StrContains(t, out, "there is no setting called stat_dir")
	code, _, _ = execute(a, "version")
	must.Zero(t, code)
	a.environ = append(a.environ, "TRANCHE_CONFIG=/nowhere/config.toml")
	_, _, stderr = execute(a, "claim", "list")
	must.StrContains(t, stderr, "correct TRANCHE_CONFIG or create the file")
}

// An error of a file that is missing says which setting names it, and what to do.
func TestConfig_MissingFiles(t *testing.T) {
	a, _ := configured(t, nvmltest.New())
	configuration, err := os.ReadFile(a.configFile)
	must.NoError(t, err)
	const remedy = ": no such file or directory; create it or correct the path\n"
	for _, c := range []struct {
		// variable names /missing in the environment, database in the URL of usage.database.
		variable, database string
		args               []string
		want               string
	}{
		{database: "passfile", args: []string{"usage"}, want: "usage.database: passfile: stat"},
		{database: "sslrootcert", args: []string{"usage"}, want: "usage.database: sslrootcert: stat"},
		{database: "sslcert", args: []string{"usage"}, want: "usage.database: sslcert: stat"},
		{database: "sslkey", args: []string{"usage"}, want: "usage.database: sslkey: stat"},
		{database: "servicefile", args: []string{"usage"}, want: "usage.database: servicefile: stat"},
		{variable: "NOMAD_CACERT", args: []string{"explain", "train"}, want: "NOMAD_CACERT: stat"},
		{variable: "NOMAD_CLIENT_KEY", args: []string{"explain", "train"}, want: "NOMAD_CLIENT_KEY: stat"},
		{variable: "NOMAD_CAPATH", args: []string{"fleet", "--listen", "127.0.0.1:0"}, want: "NOMAD_CAPATH: stat"},
		{variable: "NOMAD_CLIENT_CERT", args: []string{"fleet", "--listen", "127.0.0.1:0"}, want: "NOMAD_CLIENT_CERT: stat"},
		{args: []string{"explain", "--var-file", "/missing", "train"}, want: "--var-file: open"},
		{args: []string{"agent", "--web-config", "/missing"}, want: "--web-config: open"},
		{args: []string{"agent", "--listen", "unix:/missing/socket"}, want: "--listen: the socket's directory: stat"},
	} {
		t.Run(c.want, func(t *testing.T) {
			text := string(configuration)
			if c.database != "" {
				text += "[usage]\ndatabase = \"postgres://tranche@localhost/tranche?" + c.database + "=/missing\"\n"
			}
			must.NoError(t, os.WriteFile(a.configFile, []byte(text), 0o644))
			if c.variable != "" {
				t.Setenv(c.variable, "/missing")
			}
			code, _, stderr := execute(a, c.args...)
			must.Eq(t, exitFailure, code)
			must.StrContains(t, stderr, c.want+" /missing"+remedy)
		})
	}
}

func TestConfig_MisspelledVariable(t *testing.T) {
	a, _ := configured(t, nvmltest.New())
	a.environ = append(a.environ, "TRANCHE_CONFG=/x", "TRANCHE_CONFIG="+a.configFile)
	_, _, stderr := execute(a, "claim", "list")
	must.Eq(t, "tranche: warning: the environment variable \"TRANCHE_CONFG\" has no meaning: did you mean TRANCHE_CONFIG?\n", stderr)
}
