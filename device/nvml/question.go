package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// question is one thing that is asked of a GPU, which may not tell it: then the
// answer is left empty.
type question[T any] struct {
	about string
	// symbol is the function that is called. Old libraries may lack it, and
	// calling it then would end the process.
	symbol string
	ask    func(gonvml.Device, *T) gonvml.Return
}

// askAll asks questions of a GPU until one goes wrong.
func askAll[T any](l *Library, device gonvml.Device, uuid string, questions []question[T], answer *T) error {
	for _, q := range questions {
		if !l.has(q.symbol) {
			continue
		}
		if ret := q.ask(device, answer); ret != gonvml.SUCCESS && !notTold(ret) {
			return failure("tell the "+q.about+" of the GPU "+uuid, ret)
		}
	}
	return nil
}

// notTold says whether an answer means that the GPU or its driver doesn't tell
// this, rather than that something is wrong.
func notTold(ret gonvml.Return) bool {
	switch ret {
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_NO_DATA, gonvml.ERROR_NO_PERMISSION, gonvml.ERROR_DEPRECATED,
		gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_ARGUMENT_VERSION_MISMATCH, gonvml.ERROR_VGPU_ECC_NOT_SUPPORTED,
		gonvml.ERROR_CORRUPTED_INFOROM:
		return true
	}
	return false
}

// answer is what NVML answers to a question.
type answer[T any] struct {
	value T
	ret   gonvml.Return
}

// into keeps the answer, if it is one, and returns what NVML said of it.
func (a answer[T]) into(field **T) gonvml.Return {
	if a.ret == gonvml.SUCCESS {
		*field = &a.value
	}
	return a.ret
}

// told is an answer that is a number.
func told[N int | uint32 | uint64](value N, ret gonvml.Return) answer[int64] {
	return answer[int64]{int64(value), ret}
}

// onOff is an answer that is on or off.
func onOff(state gonvml.EnableState, ret gonvml.Return) answer[bool] {
	return answer[bool]{state == gonvml.FEATURE_ENABLED, ret}
}
