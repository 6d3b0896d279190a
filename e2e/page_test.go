//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// screenshots is where TestPage_Browser leaves pictures of the pages for docs/images if this variable names a directory.
const screenshots = "TRANCHE_SCREENSHOTS"

// hostileJob is a name that Nomad takes, and which is not for pictures.
func hostileJob() string {
	if os.Getenv(screenshots) != "" {
		return "notebook"
	}
	return `"><img/src=x/onerror=alert(1)><script>alert(2)</script>`
}

// TestPage_Browser looks at the pages of a real node with a real browser.
func TestPage_Browser(t *testing.T) {
	n := startNode(t, withLongKernels(t), withShares)
	config := filepath.Join(n.Dir, "agent.toml")
	must.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "nomad_address = %q\n", n.Agent.Address), 0o644))
	agent := agentURL(t, n, "TRANCHE_CONFIG="+config)
	fillNode(t, n)
	if os.Getenv(screenshots) != "" {
		time.Sleep(10 * time.Minute) // the time line is to have something
	}
	response, err := http.Get(agent + "/")
	must.NoError(t, err)
	must.NoError(t, response.Body.Close())
	must.StrContains(t, response.Header.Get("Content-Security-Policy"), "default-src 'none'")
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	marked := hostileJob()[:8]
	gpu := "/gpu/" + record.GPUs[0].UUID

	b := openBrowser(t)
	b.open(agent+"/", 1200, 900)
	t.Run("map to scale", func(t *testing.T) {
		width := func(kind, label string) float64 {
			return evaluate[float64](b, fmt.Sprintf(`(() => {
				const all = [...document.querySelectorAll('svg.block.%s')].filter(k => k.querySelector('title').textContent.includes(%q));
				return all.length === 1 ? all[0].firstElementChild.nextElementSibling.getBoundingClientRect().width : -all.length;
			})()`, kind, label))
		}
		bar := evaluate[float64](b, `document.querySelector('svg.bar').getBoundingClientRect().width`)
		slice := bar * gib / float64(record.GPUs[0].MemoryBytes)
		must.InDelta(t, 32*slice, width("running", "train"), 2)
		must.InDelta(t, 16*slice, width("running", "infer"), 2)
		must.InDelta(t, 8*slice, width("running", marked), 2)
		must.InDelta(t, 12*slice, width("dormant", "ended"), 2)
		outside := evaluate[string](b, `document.querySelector('svg.block.outside title').textContent`)
		must.StrContains(t, outside, "outside claims")
		used := evaluate[float64](b, `[...document.querySelectorAll('svg.block.running')].find(k =>
			k.querySelector('title').textContent.includes('train')).querySelector('rect.used').getBoundingClientRect().width`)
		must.InDelta(t, 20*slice, used, 2*slice)
	})
	t.Run("each claim has its own utilization", func(t *testing.T) {
		for _, job := range []string{"train", "infer"} {
			var busy string
			must.NoError(t, until(deadline(t), func() (bool, error) { // there are moments when a job has no processor
				b.open(agent+"/", 1200, 900)
				busy = evaluate[string](b, fmt.Sprintf(
					`[...document.querySelectorAll('tbody tr')].find(r => r.textContent.includes(%q)).children[8].textContent`, job))
				percent, err := strconv.Atoi(strings.TrimSuffix(busy, "%"))
				return err == nil && percent >= 1 && percent <= 99, nil
			}), must.Func(func() string { return job + ": " + busy }))
		}
	})
	t.Run("kinds differ without colors", func(t *testing.T) {
		must.Eq(t, 7, evaluate[int](b, `new Set([...document.querySelectorAll('.patterns pattern')].map(p => {
			const c = p.cloneNode(true);
			c.querySelectorAll('*').forEach(e => e.removeAttribute('class'));
			return c.innerHTML + c.getAttribute('patternTransform') + (p.id === 'free' || p.id === 'running' ? p.id : '');
		})).size`))
	})
	t.Run("hostile names", func(t *testing.T) {
		for _, path := range []string{"/", "/gpu/" + record.GPUs[1].UUID, b.claimPage(marked), jobPage(hostileJob()), "/waiting"} {
			b.open(agent+path, 1200, 900)
			must.Zero(t, evaluate[int](b, `document.scripts.length + document.images.length`))
			must.StrContains(t, evaluate[string](b, `document.body.textContent`), hostileJob())
			b.open(agent+"/", 1200, 900)
		}
		must.Eq(t, "", strings.Join(b.problems(), "\n"))
	})
	t.Run("links and keyboard", func(t *testing.T) {
		b.open(agent+"/", 1200, 900)
		// The first stop is past the navigation; a block is reached by the key alone.
		for range 30 {
			must.NoError(t, chromedp.Do(b.ctx, chromedp.KeyEvent("\t")))
			if evaluate[bool](b, `document.activeElement.closest('svg.bar') !== null && document.activeElement.textContent.includes('train')`) {
				break
			}
		}
		must.NoError(t, chromedp.Do(b.ctx, chromedp.KeyEvent("\r"), chromedp.WaitVisible(`//h1[contains(., 'Claim')]`)))
		must.StrContains(t, evaluate[string](b, `document.querySelector('h1').textContent`), "train")
		must.StrContains(t, evaluate[string](b, `document.body.textContent`), "by Nomad")
		must.StrHasPrefix(t, n.Agent.Address+"/ui/jobs/train@default", evaluate[string](b,
			`[...document.querySelectorAll('a')].find(a => a.textContent === 'job').href`))
		b.picture(t, "claim")
	})
	t.Run("job", func(t *testing.T) {
		b.open(agent+jobPage("train"), 1200, 600)
		size := evaluate[[]string](b, `[...document.querySelector('tbody tr').children].map(c => c.textContent)`)
		must.Eq(t, []string{"g/t", "1", "32"}, size[:3])
		must.StrHasPrefix(t, "20", size[3])
		must.StrContains(t, size[5], "of its 32 slices")
		bar := evaluate[float64](b, `document.querySelector('svg.bar').getBoundingClientRect().width`)
		peak := evaluate[float64](b, `document.querySelector('rect.peak').getBoundingClientRect().left - document.querySelector('svg.bar').getBoundingClientRect().left`)
		must.InDelta(t, bar*20/32, peak, bar/50)
		b.picture(t, "job")
	})
	t.Run("waiting", func(t *testing.T) {
		b.open(agent+"/waiting", 1200, 600)
		rows := evaluate[[]string](b, `[...document.querySelector('tbody').children].map(c => c.textContent)`)
		must.Len(t, 2, rows)
		for _, row := range rows {
			must.StrContains(t, row, "requests 140 of nvidia/slice on one GPU, and at most ")
		}
		must.StrContains(t, evaluate[string](b, `document.querySelectorAll('tbody')[1].textContent`), "train (32)")
		must.StrContains(t, evaluate[string](b, `[...document.querySelectorAll('a')].find(a => a.textContent === 'default/batch').href`), "/ui/jobs/batch@default")
		b.picture(t, "waiting")
	})
	t.Run("time line", func(t *testing.T) {
		b.open(agent+gpu, 1200, 1000)
		lanes := evaluate[[]string](b, `[...document.querySelectorAll('.timeline tbody tr')].map(r => r.textContent)`)
		must.Len(t, 3, lanes)
		must.StrContains(t, strings.Join(lanes[1:], " "), "train")
		must.StrContains(t, strings.Join(lanes[1:], " "), "infer")
		// The last minute is known, and is at the right end.
		must.True(t, evaluate[bool](b, `[...document.querySelectorAll('.timeline td.lane svg')].every(s => {
			const lane = s.getBoundingClientRect(), drawn = s.querySelector('path').getBoundingClientRect();
			return drawn.width > 0 && Math.abs(drawn.right - lane.right) < 3;
		})`))
		must.True(t, evaluate[bool](b, `document.querySelectorAll('.timeline path.used')[0].getBBox().height > 0`))
		must.StrContains(t, evaluate[string](b, `document.querySelector('[aria-label="Compute shares"]').textContent`), "train")
		b.picture(t, "gpu")
		must.StrContains(t, evaluate[string](b, `[...document.querySelectorAll('a')].find(a => a.textContent === 'Last 24 hours').href`), gpu+"?hours=24")
	})
	t.Run("dark, light and print", func(t *testing.T) {
		backs := map[string]bool{}
		for _, scheme := range []string{"light", "dark"} {
			b.open(agent+"/", 1100, 600)
			b.media("", scheme)
			backs[evaluate[string](b, `getComputedStyle(document.body).backgroundColor`)] = true
			for _, name := range []string{"--text", "--dim", "--link", "--problem"} {
				must.Greater(t, 4.5, evaluate[float64](b, fmt.Sprintf(contrast, name)), must.Sprintf("%s of %s", name, scheme))
			}
			b.picture(t, "map-"+scheme)
		}
		must.MapLen(t, 2, backs)
		b.media("print", "light")
		must.Eq(t, "none", evaluate[string](b, `getComputedStyle(document.querySelector('nav')).display`))
		b.media("", "light")
	})
	t.Run("narrow", func(t *testing.T) {
		for _, path := range []string{"/", gpu, b.claimPage(marked), jobPage(hostileJob()), "/idle", "/waiting"} {
			b.open(agent+path, 360, 800)
			must.LessEq(t, 360, evaluate[int](b, `document.documentElement.scrollWidth`), must.Sprint(path))
			b.open(agent+"/", 360, 800)
		}
	})
	must.Eq(t, "", strings.Join(b.problems(), "\n"))
}

// contrast is the ratio of a color of the page and its background, as WCAG defines it.
const contrast = `(() => {
	const style = getComputedStyle(document.documentElement);
	const light = name => {
		const hex = style.getPropertyValue(name).trim();
		return [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255)
			.map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
			.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	};
	const both = [light(%q), light('--back')].sort();
	return (both[1] + 0.05) / (both[0] + 0.05);
})()`

// withShares has claims compute in turns.
func withShares(c *node.Config) { c.DeviceConfig = "compute = \"shares\"\n" }

// fillNode has claims in all states on a node, and a process that belongs to none.
func fillNode(t *testing.T, n *node.Node) {
	t.Helper()
	for _, j := range []struct {
		name        string
		gpu, slices int
		mib         string
	}{{"train", 0, 32, "20480"}, {"infer", 0, 16, "6144"}, {hostileJob(), 1, 8, "2048"}, {"ended", 1, 12, "1024"}} {
		start(t, n, task{job: j.name, command: "gpu-probe", args: []string{"take", j.mib}, devices: []string{onGPU(j.slices, j.gpu)}})
		saysLine(t, n, running(t, n, j.name).ID, `"computing"`)
	}
	must.NoError(t, n.StopJob(deadline(t), "ended"))
	for ctx := deadline(t); ; { // the release follows the end of the task
		claims, err := n.AllClaims(ctx)
		must.NoError(t, err)
		living := 0
		for _, c := range claims {
			if c.Container != nil && claim.Alive(*c.Container) {
				living++
			}
		}
		if living == 3 {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("the container of the stopped job lives")
		case <-time.After(50 * time.Millisecond):
		}
	}
	// Two that wait: both GPUs are in use.
	for _, job := range []string{"batch", hostileJob() + "2"} {
		eval := start(t, n, task{job: job, command: "gpu-probe", args: []string{"take", "1"}, devices: []string{anyGPU(140)}})
		must.NotEq(t, "", eval.BlockedEval)
	}
	outside := exec.Command(filepath.Join(build, "e2e/gpu-probe"), "take", "4096")
	outside.Env = append(os.Environ(), append(n.Sim.Env(), "LD_LIBRARY_PATH="+filepath.Join(build, "sim/lib"))...)
	said, err := outside.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, outside.Start())
	t.Cleanup(func() { _ = outside.Process.Kill(); _ = outside.Wait() })
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), `"computing"`) {
	}
	must.StrContains(t, lines.Text(), `"computing"`, must.Sprint("the program outside ended"))
	go func() { _, _ = io.Copy(io.Discard, said) }() // so that it does not block
}

// jobPage returns the path of a job's page.
func jobPage(job string) string {
	return "/job?" + url.Values{"namespace": {"default"}, "name": {job}}.Encode()
}

// browser is a tab of Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu  sync.Mutex
	bad []string
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	b := &browser{t: t}
	allocator, stop := chromedp.NewExecAllocator(deadline(t), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.Flag("disable-gpu", true), chromedp.Flag("ignore-certificate-errors", true),
		chromedp.WSURLReadTimeout(2*time.Minute))...)
	t.Cleanup(stop)
	var closeTab context.CancelFunc
	b.ctx, closeTab = chromedp.NewContext(allocator, chromedp.WithListener(b.listen))
	t.Cleanup(closeTab)
	return b
}

// listen notes what a page without scripts never has.
func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		b.bad = append(b.bad, fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *runtime.EventExceptionThrown, *runtime.EventConsoleAPICalled, *page.EventJavascriptDialogOpening:
		b.bad = append(b.bad, fmt.Sprintf("%#v", e))
	}
}

func (b *browser) problems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bad
}

func (b *browser) open(url string, width, height int64) {
	b.t.Helper()
	must.NoError(b.t, chromedp.Do(b.ctx, chromedp.EmulateViewport(width, height), chromedp.Navigate(url)))
}

// claimPage returns the path of the page of a claim whose row on this page has a text.
func (b *browser) claimPage(text string) string {
	b.t.Helper()
	return evaluate[string](b, fmt.Sprintf(
		`[...document.querySelectorAll('tbody tr')].find(r => r.textContent.includes(%q)).querySelector('a').getAttribute('href')`, text))
}

// media sets the medium and the color scheme.
func (b *browser) media(medium, scheme string) {
	b.t.Helper()
	must.NoError(b.t, chromedp.Do(b.ctx, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Media: medium, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return chromedp.Void{}, err
	}))
}

// picture keeps a picture of the page if these are wanted.
func (b *browser) picture(t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv(screenshots)
	if dir == "" {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644))
}

// evaluate returns the value of an expression in the page.
func evaluate[T any](b *browser, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	must.NoError(b.t, err, must.Sprint(expression))
	return value
}
