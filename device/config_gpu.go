package device

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

// gpuBlock is one block `gpu "index:0" { … }` of the plugin's configuration.
type gpuBlock struct {
	// label is as in the configuration, for messages.
	label string
	gpus  gpuinfo.Selector
	// optional is whether the block may match no GPU of this node, for configurations that nodes share.
	optional bool
	share.Policy
}

// String returns the block as it is in the configuration.
func (b *gpuBlock) String() string { return fmt.Sprintf("gpu %q", b.label) }

// sharingOptions say how a GPU is shared, in a gpu block or for all GPUs.
type sharingOptions struct {
	Mode        string      `json:"mode"`
	SliceMemory string      `json:"slice_memory"`
	Replicas    *int        `json:"replicas"`
	MIG         migSections `json:"mig"`
	Compute     string      `json:"compute"`
	Enforcement string      `json:"enforcement"`
	Optional    bool        `json:"optional"`
}

// migSections is how HCL decodes a block without a label.
type migSections []migOptions

// migOptions are a block `mig { … }`.
type migOptions struct {
	Profiles []string `json:"profiles"`
	// Mode is how several tasks share each of these instances; empty if it is for one.
	Mode string `json:"mode"`
}

// parseGPUBlocks reads the gpu blocks, in the order of the configuration: the first that matches a GPU counts. Nomad's own
// schema for labelled blocks loses their order, so they come as HCL decodes them: a list of objects with one member, the
// label.
func parseGPUBlocks(decoded any, defaults sharingOptions) ([]gpuBlock, error) {
	if decoded == nil {
		return nil, nil
	}
	list, ok := decoded.([]any)
	if !ok {
		return nil, errNoGPUBlock
	}
	var blocks []gpuBlock
	for _, element := range list {
		object, ok := element.(map[string]any)
		if !ok {
			return nil, errNoGPUBlock
		}
		if len(object) > 1 {
			return nil, errors.New("gpu: an object must have one label, because the first block that matches a GPU counts and " +
				"members of an object have no order; write a list of objects")
		}
		for label, content := range object {
			found, err := parseGPUBlock(label, content, defaults)
			if errors.Is(err, errNoGPUBlock) {
				return nil, err // the label is the name of an option
			}
			if err != nil {
				return nil, fmt.Errorf("gpu %q: %w", label, err)
			}
			blocks = append(blocks, found...)
		}
	}
	return blocks, nil
}

var errNoGPUBlock = errors.New(`gpu must be a block with a label that selects GPUs, such as gpu "index:0" { mode = "exclusive" }`)

// parseGPUBlock reads the blocks of one label: HCL may group adjacent ones.
func parseGPUBlock(label string, content any, defaults sharingOptions) ([]gpuBlock, error) {
	contents, ok := content.([]any)
	if object, single := content.(map[string]any); single {
		contents, ok = []any{object}, true
	}
	if !ok {
		return nil, errNoGPUBlock
	}
	gpus, err := gpuinfo.ParseSelector(label)
	if err != nil {
		return nil, err
	}
	var blocks []gpuBlock
	for _, one := range contents {
		options, err := decodeSharing(one)
		if err != nil {
			return nil, err
		}
		chosen, err := options.or(defaults).parse()
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, gpuBlock{label: label, gpus: gpus, optional: options.Optional, Policy: chosen})
	}
	return blocks, nil
}

// decodeSharing decodes options, and refuses unknown ones.
func decodeSharing(content any) (sharingOptions, error) {
	var options sharingOptions
	text, err := json.Marshal(content)
	if err != nil {
		return options, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&options); err != nil {
		return options, explainOption(err)
	}
	return options, nil
}

// explainOption rewords errors of encoding/json in terms of the configuration.
func explainOption(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("%s must be %s, got %s", kind.Field, wanted(kind), got(kind.Value))
	}
	if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
		return fmt.Errorf("unknown option %s; the options are mode, slice_memory, replicas, mig, compute, enforcement and optional, and in mig profiles and mode", name)
	}
	return err
}

// got returns a value as encoding/json describes it: a number itself, and of others the kind.
func got(value string) string {
	if number, ok := strings.CutPrefix(value, "number "); ok {
		return number
	}
	if strings.ContainsRune("aeiou", rune(value[0])) {
		return "an " + value
	}
	return "a " + value
}

func wanted(err *json.UnmarshalTypeError) string {
	if err.Field == "mig.profiles" {
		return `a list of names, such as ["3g.20gb"]`
	}
	switch err.Type.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	default:
		return "a block"
	}
}
