package gpuinfo

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Selector selects GPUs by index, UUID, PCI bus ID or model. The zero Selector selects any.
type Selector struct {
	by, value string
}

// The ways to select a GPU.
const (
	byIndex = "index"
	byUUID  = "uuid"
	byPCI   = "pci"
	byModel = "model"
)

// forms lists the valid forms, for errors.
const forms = `"index:0", "uuid:GPU-…", "pci:0000:3b:00.0" or "model:NVIDIA H200*"; a number alone is an index, ` +
	`and what begins with GPU- or MIG- a UUID`

// ParseSelector parses a selector such as "index:0".
func ParseSelector(text string) (Selector, error) {
	text = strings.TrimSpace(text)
	by, value, ok := strings.Cut(text, ":")
	switch {
	case strings.HasPrefix(text, "GPU-"), strings.HasPrefix(text, "MIG-"):
		by, value = byUUID, text
	case !ok:
		by, value = byIndex, text
	}
	value = strings.TrimSpace(value)
	if value == "" {
		return Selector{}, fmt.Errorf("%q names no GPU: it has to be %s", text, forms)
	}
	switch by {
	case byIndex:
		index, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return Selector{}, fmt.Errorf("%q is no index of a GPU: it has to be %s", text, forms)
		}
		return Selector{byIndex, strconv.FormatUint(index, 10)}, nil
	case byUUID:
		return Selector{byUUID, value}, nil
	case byPCI:
		address, err := pciAddress(value)
		if err != nil {
			return Selector{}, fmt.Errorf("%q: %w", text, err)
		}
		return Selector{byPCI, address}, nil
	case byModel:
		if _, err := path.Match(modelText(value), ""); err != nil {
			return Selector{}, fmt.Errorf("%q is no pattern for the name of a GPU: %w", text, err)
		}
		return Selector{byModel, modelText(value)}, nil
	}
	return Selector{}, fmt.Errorf("%q names no GPU: it has to be %s", text, forms)
}

// modelText normalises a model name. It replaces slashes, so that "*" matches names that have them.
func modelText(text string) string {
	return strings.ReplaceAll(strings.ToLower(text), "/", "|")
}

// pciAddress returns a PCI address in the form 00000000:3b:00.0. The text may have no domain, or one with fewer digits.
func pciAddress(text string) (string, error) {
	var numbers []uint64
	rest, function, _ := strings.Cut(text, ".")
	parts := append(strings.Split(rest, ":"), function)
	if len(parts) == 3 {
		parts = append([]string{"0"}, parts...) // no domain is stated
	}
	bits := []int{32, 8, 5, 3}
	if len(parts) != len(bits) {
		return "", fmt.Errorf("%q is no PCI address such as 0000:3b:00.0", text)
	}
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 16, bits[i])
		if err != nil {
			return "", fmt.Errorf("%q is no PCI address such as 0000:3b:00.0", text)
		}
		numbers = append(numbers, number)
	}
	return fmt.Sprintf("%08x:%02x:%02x.%x", numbers[0], numbers[1], numbers[2], numbers[3]), nil
}

// String returns the selector in the form that ParseSelector accepts.
func (s Selector) String() string {
	if s == (Selector{}) {
		return "any GPU"
	}
	return s.by + ":" + s.value
}

// Matches reports whether the selector selects a GPU.
func (s Selector) Matches(gpu GPU) bool {
	switch s.by {
	case "":
		return true
	case byIndex:
		// MIG instances have the index of their GPU, so the index selects none of them.
		return gpu.MIGParent == "" && strconv.Itoa(gpu.Index) == s.value
	case byUUID:
		return gpu.UUID == s.value
	case byPCI:
		address, err := pciAddress(gpu.PCIBusID)
		return err == nil && address == s.value
	default:
		matches, err := path.Match(s.value, modelText(gpu.Name))
		return err == nil && matches
	}
}
