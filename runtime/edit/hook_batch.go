package edit

import (
	"encoding/json"
	"reflect"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// HookBatch replaces a hook's name on the command line of "tranche cdi-hook" to run several hooks. Each further argument is
// one of them: a JSON array of its name and its arguments.
const HookBatch = "batch"

// cdiHookArgs is the number of arguments before the hook's name: "tranche cdi-hook NAME …".
const cdiHookArgs = 2

// batched joins consecutive hooks that the command tranche runs into one, since starting a process takes longer than the
// hook's work. Hooks of other programs, and the order, do not change.
func batched(edits *cdi.ContainerEdits, cliPath string) *cdi.ContainerEdits {
	var hooks []*cdispecs.Hook
	last := map[string]*cdispecs.Hook{} // the hook before, of each kind
	for _, hook := range edits.Hooks {
		if before := last[hook.HookName]; joins(before, hook, cliPath) {
			before.Args = append(before.Args, call(hook))
			continue
		}
		if hook.Path == cliPath && len(hook.Args) > cdiHookArgs {
			hook = startBatch(hook)
		}
		last[hook.HookName] = hook
		hooks = append(hooks, hook)
	}
	edits.Hooks = hooks
	return edits
}

func joins(before, hook *cdispecs.Hook, cliPath string) bool {
	return before != nil && before.Path == cliPath && hook.Path == cliPath && len(hook.Args) > cdiHookArgs &&
		slices.Equal(before.Env, hook.Env) && reflect.DeepEqual(before.Timeout, hook.Timeout)
}

func startBatch(hook *cdispecs.Hook) *cdispecs.Hook {
	batch := *hook
	batch.Args = append(slices.Clone(hook.Args[:cdiHookArgs]), HookBatch, call(hook))
	return &batch
}

func call(hook *cdispecs.Hook) string {
	text, _ := json.Marshal(hook.Args[cdiHookArgs:]) // strings always can be
	return string(text)
}
