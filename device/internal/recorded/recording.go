// Package recorded records the answers of a device plugin to Nomad. Tests compare another plugin with a recording, or replay it in
// place of the plugin. It must not be used outside tests.
package recorded

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// Recording is the answers of a device plugin on one node.
type Recording struct {
	// Plugin and Version are as the plugin states them. Source is where its code was downloaded.
	Plugin  string `json:"plugin"`
	Version string `json:"version"`
	Source  string `json:"source,omitempty"`
	// Simulated reports that the GPUs of the node were simulated.
	Simulated bool `json:"simulated"`
	// Topology is the simulated node. Commands were run there, of nvidia-smi or the simulator, before the recording.
	Topology string     `json:"topology"`
	Commands [][]string `json:"commands,omitempty"`
	// Ignored are the GPUs that the plugin's configuration excludes.
	Ignored []string `json:"ignored_gpu_ids,omitempty"`

	Groups       []Group       `json:"fingerprint"`
	Statistics   []Statistics  `json:"statistics"`
	Reservations []Reservation `json:"reservations"`
}

// Group is a device group of a fingerprint.
type Group struct {
	Vendor     string               `json:"vendor"`
	Type       string               `json:"type"`
	Name       string               `json:"name"`
	Attributes map[string]Attribute `json:"attributes"`
	Devices    []Device             `json:"devices"`
}

// Attribute is a value of one kind with its unit.
type Attribute struct {
	Int    *int64   `json:"int,omitempty"`
	Float  *float64 `json:"float,omitempty"`
	String *string  `json:"string,omitempty"`
	Bool   *bool    `json:"bool,omitempty"`
	Unit   string   `json:"unit,omitempty"`
}

// Device is one device of a group.
type Device struct {
	ID       string `json:"id"`
	Healthy  bool   `json:"healthy"`
	PCIBusID string `json:"pci_bus_id"`
}

// Statistics are those of one device.
type Statistics struct {
	Vendor  string           `json:"vendor"`
	Type    string           `json:"type"`
	Name    string           `json:"name"`
	ID      string           `json:"id"`
	Summary Value            `json:"summary"`
	Values  map[string]Value `json:"values"`
}

// Value is one statistic: a number, a fraction, or a text.
type Value struct {
	Numerator   *int64  `json:"numerator,omitempty"`
	Denominator *int64  `json:"denominator,omitempty"`
	String      *string `json:"string,omitempty"`
	Unit        string  `json:"unit,omitempty"`
}

// Reservation is the environment that the plugin returned for devices.
type Reservation struct {
	IDs []string          `json:"ids"`
	Env map[string]string `json:"env"`
}

// Read reads a recording.
func Read(path string) (*Recording, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Recording)
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("read the recording %s: %w", path, err)
	}
	return r, nil
}

// Write writes a recording.
func (r *Recording) Write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}

func groupOf(g *ndevice.DeviceGroup) Group {
	group := Group{Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: map[string]Attribute{}}
	for name, a := range g.Attributes {
		group.Attributes[name] = Attribute{Int: a.Int, Float: a.Float, String: a.String, Bool: a.Bool, Unit: a.Unit}
	}
	for _, d := range g.Devices {
		device := Device{ID: d.ID, Healthy: d.Healthy}
		if d.HwLocality != nil {
			device.PCIBusID = d.HwLocality.PciBusID
		}
		group.Devices = append(group.Devices, device)
	}
	slices.SortFunc(group.Devices, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	return group
}

// deviceGroup returns the group as a plugin publishes it.
func (g Group) deviceGroup() *ndevice.DeviceGroup {
	group := &ndevice.DeviceGroup{
		Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: map[string]*structs.Attribute{},
	}
	for name, a := range g.Attributes {
		group.Attributes[name] = &structs.Attribute{Int: a.Int, Float: a.Float, String: a.String, Bool: a.Bool, Unit: a.Unit}
	}
	for _, d := range g.Devices {
		group.Devices = append(group.Devices, &ndevice.Device{
			ID: d.ID, Healthy: d.Healthy, HwLocality: &ndevice.DeviceLocality{PciBusID: d.PCIBusID},
		})
	}
	return group
}

func valueOf(v *structs.StatValue) Value {
	if v == nil {
		return Value{}
	}
	return Value{Numerator: v.IntNumeratorVal, Denominator: v.IntDenominatorVal, String: v.StringVal, Unit: v.Unit}
}
