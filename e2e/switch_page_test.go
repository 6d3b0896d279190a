//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/images"
)

// switchPage is docs/from-nomad-device-nvidia.md.
type switchPage struct {
	t    *testing.T
	text string
}

// blocks are the code blocks of a language in a section.
func (p switchPage) blocks(section, language string) []string {
	p.t.Helper()
	_, rest, found := strings.Cut(p.text, "\n## "+section+"\n")
	must.True(p.t, found, must.Sprint("the page has no section ", section))
	text, _, _ := strings.Cut(rest, "\n## ")
	var blocks []string
	for i, block := range strings.Split(text, "```") {
		if body, is := strings.CutPrefix(block, language+"\n"); i%2 == 1 && is {
			blocks = append(blocks, body)
		}
	}
	must.SliceNotEmpty(p.t, blocks)
	return blocks
}

func (p switchPage) commands(section string) string {
	return "\n: '" + section + "'\n" + strings.Join(p.blocks(section, "sh"), "")
}

// A node with nomad-device-nvidia's configuration and its job is switched over as docs/from-nomad-device-nvidia.md says, and
// back, on a real Nomad agent with Docker and NVIDIA's runtime. nomad-device-nvidia itself is a program that repeats what
// a real one said of the same simulated GPUs.
func TestSwitchPage(t *testing.T) {
	content, err := os.ReadFile("../docs/from-nomad-device-nvidia.md")
	must.NoError(t, err)
	page := switchPage{t, string(content)}
	dir := t.TempDir()
	jobs := page.blocks("What stays", "hcl")
	fraction := page.blocks("Fractions on one GPU", "hcl")
	for name, text := range map[string]string{
		"train.nomad.hcl": jobs[0], "fraction.nomad.hcl": fraction[1], "tranche-block": fraction[0],
		"nvidia.hcl": page.blocks("Switch", "hcl")[0], "script": switchScript(page),
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	image, err := images.Program(filepath.Join(build, "e2e/gpu-probe"))
	must.NoError(t, err)
	must.NoError(t, images.SaveDockerArchive(image, "tranche.local/train:1", filepath.Join(dir, "image.tar")))
	topology, err := filepath.Abs("simgpu/topologies/h200x2.conf")
	must.NoError(t, err)
	recording, err := filepath.Abs("../device/testdata/nomad-device-nvidia/h200x2.json")
	must.NoError(t, err)
	cmd := exec.CommandContext(deadline(t), "unshare", "--mount", "--pid", "--fork", "--kill-child",
		"sh", "testdata/switch.sh", dir, build, topology, recording)
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	text := string(out)
	t.Log(text)
	must.StrContains(t, text, "nomad-device-nvidia is turned off")
	must.StrContains(t, text, `"found": "no other plugin for these GPUs is to run beside nomad-device-tranche"`)
	must.StrContains(t, text, "Nothing was changed (--dry-run).")
	must.StrContains(t, text, "ALL OF THE PAGE HELD")
}

// switchScript is what is done on the machine: the page's commands, and between them what has to be true.
func switchScript(page switchPage) string {
	return `set -eu
. ./switch_functions.sh
another train2 containerd
another train3 docker
systemctl start containerd
systemctl start docker
docker load <image.tar
ctr -n nomad image import image.tar
cp nvidia.hcl /etc/nomad.d/nvidia.hcl
set -x
systemctl start nomad-server
systemctl start nomad
await_that ready
fingerprint >before
nomad job run -detach train.nomad.hcl
await_that computes train
first=$(alloc train) gpu=$(device train) container=$(docker ps -q --filter name=train-)
docker inspect --format '{{json .HostConfig.Runtime}}' "$container" | grep nvidia
` + page.commands("Switch") + `
await_that modes_are exclusive
: 'the task went on, and its GPU counts as taken'
[ "$(alloc train)" = "$first" ] && [ "$(device train)" = "$gpu" ]
[ "$(docker ps -q --filter name=train-)" = "$container" ]
await_that as_before after
nomad job run -detach train2.nomad.hcl
await_that computes train2
[ "$(device train2)" != "$gpu" ]
[ "$(claims)" = "exclusive " ]
nomad job run -detach train3.nomad.hcl
await_that waits train3
: 'a task from before is restarted in place, by NVIDIA and without a claim'
nomad alloc restart "$first"
await_that restarted "$container"
[ "$(alloc train)" = "$first" ]
[ "$(claims)" = "exclusive " ]
: 'what waited gets its GPU, by NVIDIA as well'
nomad job stop -purge -detach train
await_that computes train3
[ "$(device train3)" = "$gpu" ]
nomad job stop -purge -detach train3
: 'one GPU in slices: the one that has a task'
uuid=$(device train2 | sed 's/.* //')
index=$(nvidia-smi -L | sed -n "s/^GPU \([0-9]*\):.*$uuid.*/\1/p")
sed -i "s/index:1/index:$index/" tranche-block
awk 'FNR == NR { block = block $0 "\n"; next }
    /^plugin "nomad-device-tranche"/ { printf "%s", block; skip = 1 }
    !skip { print }
    /^}/ { skip = 0 }' tranche-block /etc/nomad.d/tranche.hcl >new
cat new >/etc/nomad.d/tranche.hcl
` + page.commands("Fractions on one GPU") + `
await_that unhealthy 'waits for claim'
computes train2
tranche install nomad
grep "gpu \"index:$index\"" /etc/nomad.d/tranche.hcl
nomad job run -detach fraction.nomad.hcl
await_that waits fraction
nomad job stop -purge -detach train2
await_that computes fraction
device fraction | grep "nvidia/slice/NVIDIA H200 #$index"
[ "$(claims)" = "slice " ]
: 'and back'
nomad job run -detach train.nomad.hcl
await_that computes train
kept=$(alloc train)
` + strings.Join(page.blocks("Back again", "sh"), "await_that tranche uninstall nomad --dry-run\n") + `
await_that as_before again
[ "$(alloc train)" = "$kept" ]
nomad job run -detach train3.nomad.hcl
await_that computes train3
set +x
echo ALL OF THE PAGE HELD
`
}
