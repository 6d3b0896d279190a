package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// query is one query of a GPU. If the GPU does not support it, the answer is left empty.
type query[T any] struct {
	about string
	// symbol is the function that is called. Old libraries may lack it, and the call would then end the process.
	symbol string
	run    func(gonvml.Device, *T) gonvml.Return
}

// queryAll makes queries of a GPU until one fails.
func queryAll[T any](l *Library, device gonvml.Device, uuid string, queries []query[T], answer *T) error {
	for _, q := range queries {
		if !l.has(q.symbol) {
			continue
		}
		if ret := q.run(device, answer); ret != gonvml.SUCCESS && !unsupported(ret) {
			return failure("read the "+q.about+" of the GPU "+uuid, ret)
		}
	}
	return nil
}

// unsupported reports whether an answer means that the GPU or its driver does not support a query, rather than that
// something is wrong.
func unsupported(ret gonvml.Return) bool {
	switch ret {
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_NO_DATA, gonvml.ERROR_NO_PERMISSION, gonvml.ERROR_DEPRECATED,
		gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_ARGUMENT_VERSION_MISMATCH, gonvml.ERROR_VGPU_ECC_NOT_SUPPORTED,
		gonvml.ERROR_CORRUPTED_INFOROM:
		return true
	}
	return false
}

// answer is what NVML returns from a query.
type answer[T any] struct {
	value T
	ret   gonvml.Return
}

// into stores a successful answer, and returns NVML's return code.
func (a answer[T]) into(field **T) gonvml.Return {
	if a.ret == gonvml.SUCCESS {
		*field = &a.value
	}
	return a.ret
}

// number is an answer that is a number.
func number[N int | uint32 | uint64](value N, ret gonvml.Return) answer[int64] {
	return answer[int64]{int64(value), ret}
}

// onOff is an answer that is on or off.
func onOff(state gonvml.EnableState, ret gonvml.Return) answer[bool] {
	return answer[bool]{state == gonvml.FEATURE_ENABLED, ret}
}
