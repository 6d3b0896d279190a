package device

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/internal/recorded"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
)

var (
	recordFrom = flag.String("nomad-device-nvidia", "",
		"program of nomad-device-nvidia to record anew, instead of comparing with the recordings that are there")
	recordSource = flag.String("nomad-device-nvidia-source", "", "where its code was had: a version, a commit")
)

const nvidiaRecordings = "testdata/nomad-device-nvidia"

// nvidiaNode is a simulated node on which nomad-device-nvidia was recorded.
type nvidiaNode struct {
	name, topology string
	// commands are run by nvidia-smi or the simulator first.
	commands [][]string
	// ignored are GPUs and instances that the configuration leaves out, in ours and theirs.
	ignored []string
	// options are ours.
	options map[string]any
	// made says that our plugin makes the instances, and does not find those of the commands.
	made bool
}

func nvidiaNodes() []nvidiaNode {
	profiles := []string{"3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"}
	smi, simgpu := command("nvidia-smi"), command("simgpu")
	exclusive := map[string]any{"mode": "exclusive"}
	declared := func() map[string]any {
		return map[string]any{"mode": "exclusive", "gpu": gpuBlocks(
			migBlock("index:0", profiles...), migBlock("index:1", profiles...))}
	}
	cut := [][]string{
		smi("-i", "0", "-mig", "1"), smi("-i", "1", "-mig", "1"), smi("-i", "2", "-mig", "1"),
		simgpu("reset", "0"), simgpu("reset", "1"), simgpu("reset", "2"),
		smi("mig", "-i", "0", "-cgi", strings.Join(profiles, ","), "-C"),
		smi("mig", "-i", "1", "-cgi", strings.Join(profiles, ","), "-C"),
	}
	return []nvidiaNode{
		{name: "h200x2", topology: "h200x2.conf", options: exclusive},
		{name: "mixed", topology: "mixed.conf", options: exclusive},
		{name: "b200", topology: "b200x8.conf", options: exclusive},
		{name: "busy", topology: "mixed.conf", options: exclusive, commands: [][]string{
			simgpu("set", "0", "power_mw", "303900"), simgpu("set", "1", "power_mw", "55000"),
			simgpu("set", "0", "temperature", "71"), simgpu("set", "0", "graphics_mhz", "1410"),
			simgpu("set", "0", "gpu_utilisation", "97"), simgpu("set", "0", "memory_utilisation", "41"),
			simgpu("set", "0", "encoder_utilisation", "3"), simgpu("set", "0", "decoder_utilisation", "5"),
			simgpu("set", "0", "bar1_used_mib", "17"), simgpu("set", "0", "persistence_mode", "1"),
			simgpu("set", "2", "display_mode", "1"), simgpu("set", "2", "pcie_generation", "4"),
			simgpu("set", "3", "pcie_width", "8"), simgpu("set", "3", "pcie_generation", "2"),
			simgpu("fault", "ecc", "0", "corrected", "l1", "2"), simgpu("fault", "ecc", "0", "corrected", "l2", "3"),
			simgpu("fault", "ecc", "0", "corrected", "dram", "4"),
		}},
		{name: "silent", topology: "mixed.conf", options: exclusive, commands: [][]string{
			simgpu("set", "3", "power_mw", "unsupported"), simgpu("set", "3", "memory_mhz", "unsupported"),
			simgpu("set", "3", "bar1_mib", "unsupported"), simgpu("set", "3", "pcie_width", "unsupported"),
			simgpu("set", "3", "temperature", "unsupported"), simgpu("set", "3", "ecc_mode", "unsupported"),
		}},
		{name: "h200-mig", topology: "h200-mig.conf", options: exclusive},
		{name: "h100-mig", topology: "h100x8.conf", options: exclusive, commands: [][]string{
			smi("-i", "7", "-mig", "1"), smi("mig", "-i", "7", "-cgi", "1g.10gb+me,1g.20gb,4g.40gb", "-C"),
		}},
		{name: "ignored", topology: "h200-mig.conf", options: exclusive, ignored: []string{
			"GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001", "MIG-51d40f7e-0c1a-4e6b-9f3d-5a1e00000a01",
		}},
		{name: "a100-mig", topology: "a100-40x8.conf", commands: cut, options: exclusive},
		{name: "a100-mig", topology: "a100-40x8.conf", commands: cut, options: declared()},
		{name: "a100-mig", topology: "a100-40x8.conf", commands: [][]string{smi("-i", "2", "-mig", "1"), simgpu("reset", "2")},
			options: declared(), made: true},
	}
}

// command makes commands of one program.
func command(program string) func(args ...string) []string {
	return func(args ...string) []string { return append([]string{program}, args...) }
}

// start creates the node, and runs its commands.
func (n nvidiaNode) start(t *testing.T) *simtest.Node {
	t.Helper()
	node := simtest.New(t, n.topology)
	for _, command := range n.commands {
		if command[0] == "nvidia-smi" {
			node.SMI(t, command[1:]...)
		} else {
			node.Run(t, command[1:]...)
		}
	}
	return node
}

// What is published of a node's GPUs is what nomad-device-nvidia publishes, except for what docs/from-nomad-device-nvidia.md
// says.
func TestNomadDeviceNvidia(t *testing.T) {
	if *recordFrom != "" {
		recordNvidia(t)
	}
	differences := map[string][]string{}
	for i, n := range nvidiaNodes() {
		t.Run(fmt.Sprintf("%d-%s", i, n.name), func(t *testing.T) {
			theirs, err := recorded.Read(filepath.Join(nvidiaRecordings, n.name+".json"))
			must.NoError(t, err)
			must.Eq(t, n.topology, theirs.Topology)
			must.Eq(t, n.ignored, theirs.Ignored)
			must.SliceNotEmpty(t, theirs.Groups)
			if !n.made {
				must.Eq(t, n.commands, theirs.Commands)
			}
			node := n.start(t)
			options := map[string]any{"driver_root": node.DriverRoot, "ignored_gpu_ids": n.ignored}
			maps.Copy(options, n.options)
			ours, err := recorded.Capture(t.Context(), startProcess(t, testOptions(t, options)))
			must.NoError(t, err)
			if n.made {
				renameInstances(theirs)
				renameInstances(ours)
			}
			for difference, where := range differ(theirs, ours) {
				t.Logf("%s: %s", difference, where)
				differences[difference] = append(differences[difference], n.name)
			}
		})
	}
	must.Eq(t, documentedDifferences(t), slices.Sorted(maps.Keys(differences)))
}

// recordNvidia asks a real nomad-device-nvidia about the simulated nodes.
func recordNvidia(t *testing.T) {
	t.Helper()
	must.NotEq(t, "", *recordSource, must.Sprint("say where the code was had with -nomad-device-nvidia-source"))
	done := map[string]bool{}
	for _, n := range nvidiaNodes() {
		if done[n.name] {
			continue
		}
		done[n.name] = true
		t.Run("record-"+n.name, func(t *testing.T) {
			node := n.start(t)
			library, err := filepath.Glob(filepath.Join(node.DriverRoot, "usr/lib/*/libnvidia-ml.so.1"))
			must.NoError(t, err)
			must.Len(t, 1, library)
			cmd := exec.Command(*recordFrom)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library[0]))
			p := launch(t, cmd)
			var encoded []byte
			must.NoError(t, base.MsgPackEncode(&encoded, map[string]any{
				"enabled": true, "ignored_gpu_ids": n.ignored, "fingerprint_period": "1m",
			}))
			must.NoError(t, p.SetConfig(&base.Config{PluginConfig: encoded}))
			r, err := recorded.Capture(t.Context(), p)
			must.NoError(t, err)
			r.Source, r.Simulated, r.Topology, r.Commands, r.Ignored = *recordSource, true, n.topology, n.commands, n.ignored
			must.NoError(t, r.Write(filepath.Join(nvidiaRecordings, n.name+".json")))
		})
	}
}

// renameInstances calls the instances of a group by their number, GPU by GPU: those that were made at another time have
// other UUIDs.
func renameInstances(r *recorded.Recording) {
	names := map[string]string{}
	rename := func(id string) string { return cmp.Or(names[id], id) }
	for _, g := range r.Groups {
		slices.SortFunc(g.Devices, func(a, b recorded.Device) int { return cmp.Compare(a.PCIBusID+a.ID, b.PCIBusID+b.ID) })
		for i, d := range g.Devices {
			if strings.HasPrefix(d.ID, "MIG-") {
				names[d.ID] = fmt.Sprintf("MIG-%d of %s", i, g.Name)
				g.Devices[i].ID = names[d.ID]
			}
		}
	}
	for i := range r.Statistics {
		r.Statistics[i].ID = rename(r.Statistics[i].ID)
	}
	for i, reservation := range r.Reservations {
		visible := strings.Split(reservation.Env[claim.VisibleDevices], ",")
		for k := range visible {
			visible[k] = rename(visible[k])
			r.Reservations[i].IDs[k] = rename(reservation.IDs[k])
		}
		slices.Sort(visible)
		slices.Sort(r.Reservations[i].IDs)
		reservation.Env[claim.VisibleDevices] = strings.Join(visible, ",")
	}
}

// differ names what is not the same, and says where.
func differ(theirs, ours *recorded.Recording) map[string]string {
	found := map[string]string{}
	key := func(g recorded.Group) string { return g.Vendor + "/" + g.Type + "/" + g.Name }
	differValues(found, "device group", "all", byKey(theirs.Groups, key), byKey(ours.Groups, key),
		func(name string, there, here recorded.Group) {
			differValues(found, "attribute", name, there.Attributes, here.Attributes, nil)
			id := func(d recorded.Device) string { return d.ID }
			differValues(found, "device", name, byKey(there.Devices, id), byKey(here.Devices, id),
				func(name string, there, here recorded.Device) {
					if there.Healthy != here.Healthy {
						found["health"] = name
					}
					if there.PCIBusID != here.PCIBusID {
						found["PCI bus ID"] = fmt.Sprintf("of %s: %q, %q", name, there.PCIBusID, here.PCIBusID)
					}
					if strings.TrimRight(there.PCIBusID, "\x00") != here.PCIBusID {
						found["PCI bus ID without its padding"] = fmt.Sprintf("of %s: %q, %q", name, there.PCIBusID, here.PCIBusID)
					}
				})
		})
	differStatistics(found, theirs, ours)
	ids := func(r recorded.Reservation) string { return strings.Join(r.IDs, ",") }
	differValues(found, "reservation", "all", byKey(theirs.Reservations, ids), byKey(ours.Reservations, ids),
		func(name string, there, here recorded.Reservation) {
			differValues(found, "variable", name, there.Env, here.Env, nil)
		})
	return found
}

func differStatistics(found map[string]string, theirs, ours *recorded.Recording) {
	name := func(s recorded.Statistics) string {
		return strings.Join([]string{s.Vendor, s.Type, s.Name, s.ID}, "/")
	}
	there, here := byKey(theirs.Statistics, name), byKey(ours.Statistics, name)
	for which, s := range here {
		if _, both := there[which]; !both && strings.HasPrefix(s.ID, "MIG-") {
			delete(here, which)
			found["statistics only here: of instances"] = which
		}
	}
	differValues(found, "statistics", "all", there, here, func(name string, there, here recorded.Statistics) {
		differValues(found, "statistic", name, there.Values, here.Values, nil)
		if !reflect.DeepEqual(there.Summary, here.Summary) {
			found["summary"] = fmt.Sprintf("of %s: %s, %s", name, show(there.Summary), show(here.Summary))
		}
	})
}

// differValues names what only one has, and what both have and is not the same; or hands that to whoever knows its parts.
func differValues[T any](found map[string]string, kind, of string, there, here map[string]T, both func(string, T, T)) {
	for name, value := range there {
		other, ok := here[name]
		switch {
		case !ok:
			found[kind+" only there: "+name] = of
		case both != nil:
			both(name, value, other)
		case !reflect.DeepEqual(value, other):
			found[kind+" differs: "+name] = fmt.Sprintf("of %s: %s, %s", of, show(value), show(other))
		}
	}
	for name := range here {
		if _, ok := there[name]; !ok {
			found[kind+" only here: "+name] = of
		}
	}
}

func byKey[T any](all []T, key func(T) string) map[string]T {
	byKey := make(map[string]T)
	for _, one := range all {
		byKey[key(one)] = one
	}
	return byKey
}

// show follows pointers, for messages.
func show(value any) string {
	v := reflect.ValueOf(value)
	if v.Kind() != reflect.Struct {
		return fmt.Sprint(value)
	}
	var parts []string
	for i := range v.NumField() {
		field := reflect.Indirect(v.Field(i))
		if field.IsValid() && !field.IsZero() {
			parts = append(parts, fmt.Sprintf("%s %v", v.Type().Field(i).Name, field))
		}
	}
	return strings.Join(parts, " ")
}

// documentedDifferences are those of the page's table. The first cell of a row has what differs, and names in code.
func documentedDifferences(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../docs/from-nomad-device-nvidia.md")
	must.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "\n## What Nomad sees\n")
	must.True(t, found)
	section, _, _ := strings.Cut(rest, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| [^|]+ \| [^|]+ \|$`).FindAllStringSubmatch(section, -1)
	var all []string
	for _, row := range rows[1:] {
		kind, names, several := strings.Cut(row[1], ": `")
		if !several {
			all = append(all, row[1])
			continue
		}
		for name := range strings.SplitSeq(strings.TrimSuffix(names, "`"), "`, `") {
			all = append(all, kind+": "+name)
		}
	}
	slices.Sort(all)
	return all
}
