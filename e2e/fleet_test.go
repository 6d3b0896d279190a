//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// viewerPolicy is the one of docs/operations.md.
const viewerPolicy = `
namespace "research" {
  capabilities = ["read-job"]
}

node {
  policy = "read"
}
`

// TestFleet runs examples/fleet.nomad.hcl on a real Nomad with ACLs, and looks at its pages with tokens of different rights.
func TestFleet(t *testing.T) {
	n := startFleetNode(t)
	token := restartWithACL(t, n, viewerPolicy)
	secret := strings.TrimSpace(readFile(t, token))
	_, err := n.WaitNode(deadline(t), func(info *api.Node) bool { d := info.Drivers["raw_exec"]; return d != nil && d.Healthy })
	must.NoError(t, err)
	for _, namespace := range []string{"research", "lab"} {
		_, err := n.Agent.API.Namespaces().Register(&api.Namespace{Name: namespace}, nil)
		must.NoError(t, err)
	}
	second := startNode(t, func(c *node.Config) { c.Joins, c.PluginBlocks = n, "acl {\n enabled = true\n}\n" })
	var used []uint64
	for _, j := range []struct {
		on             *node.Node
		namespace, job string
		slices         int
		mib            string
	}{{n, "research", "train", 32, "20480"}, {n, "lab", hostileJob(), 8, "2048"}, {second, "research", "infer", 16, "4096"}} {
		n.Agent.API.SetNamespace(j.namespace)
		startIn(t, n, j.namespace, task{
			job: j.job, command: "gpu-probe", args: []string{"take", j.mib}, devices: []string{onGPU(j.slices, 0)}, groupExtra: onNode(j.on),
		})
		alloc := running(t, n, j.job)
		saysLine(t, n, alloc.ID, `"computing"`)
		for _, g := range held(t, j.on, alloc.ID) {
			used = append(used, g.Bytes)
		}
	}
	n.Agent.API.SetNamespace("default")
	must.Len(t, 3, used)
	waitForStatistics(t, n, used[0]+used[1]+used[2])
	address, roots := runFleet(t, n)

	viewer := newViewer(t, address, roots)
	status, body := viewer.get("/")
	must.Eq(t, http.StatusForbidden, status)
	must.StrNotContains(t, body, "train")
	status, body = viewer.signIn("11111111-2222-3333-4444-555555555555")
	must.Eq(t, http.StatusForbidden, status)
	must.StrContains(t, body, "Nomad does not take the token")

	_, body = viewer.signIn(secret)
	must.StrContains(t, body, fmt.Sprintf("32 of 140 nvidia/slice on GPU 0, job train in namespace research, task g/t, running, %.1f GiB of 32 GiB used",
		float64(used[0])/gib))
	must.StrContains(t, body, fmt.Sprintf("16 of 140 nvidia/slice on GPU 0, job infer in namespace research, task g/t, running, %.1f GiB of 16 GiB used",
		float64(used[2])/gib))
	must.StrContains(t, body, "124 of 140 nvidia/slice on GPU 0, free")
	must.StrContains(t, body, "8 of 140 nvidia/slice on GPU 0, other")
	must.StrContains(t, body, "100 of 140 nvidia/slice on GPU 0, free")
	hidden := html.EscapeString(hostileJob())
	for _, path := range []string{"/", "/namespace?name=lab", "/waiting"} {
		_, body = viewer.get(path)
		must.StrNotContains(t, body, hidden)
	}

	management, _, err := n.Agent.API.ACLTokens().Create(&api.ACLToken{Type: "management"}, nil)
	must.NoError(t, err)
	_, body = newViewer(t, address, roots).signIn(management.SecretID)
	must.StrContains(t, body, "8 of 140 nvidia/slice on GPU 0, job "+hidden+" in namespace lab, ")
	must.StrNotContains(t, body, "nvidia/slice on GPU 0, other")
	fleetInBrowser(t, n, address, secret)
	explainUnseen(t, n)

	log, err := n.Logs(deadline(t), running(t, n, "tranche-fleet").ID, "fleet", "stderr")
	must.NoError(t, err)
	must.StrContains(t, log, "listening: address=https://")
	for _, text := range []string{log, readFile(t, filepath.Join(n.Dir, "nomad.log"))} {
		must.StrNotContains(t, text, secret)
	}
}

// explainUnseen has `tranche explain` count what a token may not see.
func explainUnseen(t *testing.T, n *node.Node) {
	t.Helper()
	token := filepath.Join(n.Dir, "explain-token")
	writeToken(t, n, "explain", strings.Replace(viewerPolicy, `"read-job"`, `"read-job", "submit-job"`, 1), token)
	t.Setenv("NOMAD_TOKEN", strings.TrimSpace(readFile(t, token)))
	code, out := explained(t, n, "--namespace", "research", "--var", "slices=125", filepath.Join(build, "../examples/waiting.nomad.hcl"))
	must.Eq(t, 2, code, must.Sprint(out))
	must.RegexMatch(t, regexp.MustCompile(` 140 +100 +train in namespace research \(32\), allocations that the token may not see \(8\) +-\n`), out)
}

// startFleetNode starts a node that runs programs without a container, in a directory that these may see, whoever they are. Its path
// is short, since the path of a task's socket is bounded.
func startFleetNode(t *testing.T) *node.Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "fleet")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(dir, 0o755))
	var n *node.Node
	t.Cleanup(func() {
		if t.Failed() && n != nil {
			t.Log(readFile(t, filepath.Join(dir, "nomad.log")))
		}
		must.NoError(t, os.RemoveAll(dir))
	})
	n = startNode(t, func(c *node.Config) {
		c.Dir = dir
		c.PluginBlocks = "plugin \"raw_exec\" {\n config {\n enabled = true\n }\n}\n"
	})
	return n
}

// onNode has a group placed on a node.
func onNode(n *node.Node) string {
	return fmt.Sprintf("constraint {\n attribute = \"${node.unique.name}\"\n value = %q\n}", filepath.Base(n.Dir))
}

// waitForStatistics waits until Nomad's statistics of all nodes' claims are of so many bytes.
func waitForStatistics(t *testing.T, n *node.Node, bytes uint64) {
	t.Helper()
	nodes, _, err := n.Agent.API.Nodes().List(nil)
	must.NoError(t, err)
	must.NoError(t, until(deadline(t), func() (bool, error) {
		var sum int64
		for _, registered := range nodes {
			stats, err := n.Agent.API.Nodes().Stats(registered.ID, nil)
			if err != nil {
				return false, err
			}
			for _, group := range stats.DeviceStats {
				for _, instance := range group.InstanceStats {
					if used := instance.Stats.Attributes["Claim memory"]; used != nil && used.IntNumeratorVal != nil {
						sum += *used.IntNumeratorVal
					}
				}
			}
		}
		return sum >= int64(bytes/mib)-2, nil
	}))
}

// runFleet runs the example, and returns the address of its pages and the certificate that these have.
func runFleet(t *testing.T, n *node.Node) (address string, roots *x509.CertPool) {
	t.Helper()
	certified := httptest.NewTLSServer(http.NotFoundHandler())
	defer certified.Close()
	pair := certified.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must.NoError(t, err)
	variable := api.NewVariable("nomad/jobs/tranche-fleet")
	variable.Items["certificate"] = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
	variable.Items["key"] = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	_, _, err = n.Agent.API.Variables().Create(variable, nil)
	must.NoError(t, err)

	program := filepath.Join(n.Dir, "tranche") // where nobody may run it
	out, err := exec.Command("cp", filepath.Join(build, "bin/tranche"), program).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	job, err := n.Job(filepath.Join(build, "../examples/fleet.nomad.hcl"), "tranche="+program, "nomad_ui="+n.Agent.Address)
	must.NoError(t, err)
	_, err = n.Run(deadline(t), job)
	must.NoError(t, err)
	running(t, n, "tranche-fleet")
	address, roots = "https://127.0.0.1:9761", x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	client := newViewer(t, address, roots)
	must.NoError(t, until(deadline(t), func() (bool, error) {
		response, err := client.Get(address + "/-/healthy")
		if err == nil {
			_ = response.Body.Close()
		}
		return err == nil && response.StatusCode == http.StatusOK, nil
	}))
	return address, roots
}

// pageViewer is a browser without a window.
type pageViewer struct {
	*http.Client
	t       *testing.T
	address string
}

func newViewer(t *testing.T, address string, roots *x509.CertPool) *pageViewer {
	t.Helper()
	jar, err := cookiejar.New(nil)
	must.NoError(t, err)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &pageViewer{&http.Client{Jar: jar, Transport: transport}, t, address}
}

func (v *pageViewer) get(path string) (int, string) { return v.read(v.Get(v.address + path)) }

func (v *pageViewer) signIn(token string) (int, string) {
	return v.read(v.PostForm(v.address+"/sign-in", url.Values{"token": {token}}))
}

func (v *pageViewer) read(response *http.Response, err error) (int, string) {
	v.t.Helper()
	must.NoError(v.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must.NoError(v.t, err)
	return response.StatusCode, string(body)
}

// fleetInBrowser signs in and out with a real browser, which minds the policy of the pages.
func fleetInBrowser(t *testing.T, n *node.Node, address, secret string) {
	t.Helper()
	b := openBrowser(t)
	b.open(address+"/", 1200, 600)
	must.NoError(t, chromedp.Do(b.ctx, chromedp.SendKeys(`input[name=token]`, secret+"\r"), chromedp.WaitVisible(`//h1[contains(., 'GPUs of all nodes')]`)))
	must.Eq(t, address+"/", evaluate[string](b, `location.href`))
	must.Eq(t, "", evaluate[string](b, `document.cookie`))
	width := evaluate[float64](b, `document.querySelector('svg.block.running rect').getBoundingClientRect().width /
		document.querySelector('svg.bar').getBoundingClientRect().width`)
	must.InDelta(t, 32.0/140, width, 0.02)
	b.picture(t, "fleet")
	must.NoError(t, chromedp.Do(b.ctx, chromedp.Click(`//h2/a`), chromedp.WaitVisible(`//h1[contains(., 'Node')]`)))
	must.StrContains(t, evaluate[string](b, `document.querySelector('h2').textContent`), "100 of 140 nvidia/slice free")
	must.StrHasPrefix(t, n.Agent.Address+"/ui/clients/", evaluate[string](b, `[...document.querySelectorAll('a')].find(a => a.textContent === 'The node in Nomad').href`))
	for _, path := range []string{"/", "/waiting", "/job?namespace=research&name=train"} {
		b.open(address+path, 360, 800)
		must.LessEq(t, 360, evaluate[int](b, `document.documentElement.scrollWidth`), must.Sprint(path))
	}
	must.NoError(t, chromedp.Do(b.ctx, chromedp.Click(`//button[. = 'Sign out']`), chromedp.WaitVisible(`input[name=token]`)))
	b.open(address+"/", 1200, 600)
	must.StrContains(t, evaluate[string](b, `document.querySelector('h1').textContent`), "Sign in")
	for _, problem := range b.problems() {
		must.StrContains(t, problem, "403") // of the page that asks for a token
	}
}
