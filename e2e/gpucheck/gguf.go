package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// A language model of the architecture "llama" that has learnt nothing: some 320 MiB of random weights.
const (
	modelLayers   = 8
	modelWidth    = 1024
	modelHidden   = 2816
	modelHeads    = 16
	modelWords    = 32000
	modelContext  = 2048
	ggufAlignment = 32
)

// tensor is one of a model's, of 16-bit numbers if it has two dimensions and of 32-bit ones if it has one.
type tensor struct {
	name string
	dims []uint64
}

func (t tensor) bytes() uint64 {
	if len(t.dims) == 1 {
		return 4 * t.dims[0]
	}
	return 2 * t.dims[0] * t.dims[1]
}

func modelTensors() []tensor {
	all := []tensor{
		{"token_embd.weight", []uint64{modelWidth, modelWords}},
		{"output_norm.weight", []uint64{modelWidth}},
		{"output.weight", []uint64{modelWidth, modelWords}},
	}
	for layer := range modelLayers {
		for _, t := range []tensor{
			{"attn_norm", []uint64{modelWidth}},
			{"attn_q", []uint64{modelWidth, modelWidth}},
			{"attn_k", []uint64{modelWidth, modelWidth}},
			{"attn_v", []uint64{modelWidth, modelWidth}},
			{"attn_output", []uint64{modelWidth, modelWidth}},
			{"ffn_norm", []uint64{modelWidth}},
			{"ffn_gate", []uint64{modelWidth, modelHidden}},
			{"ffn_up", []uint64{modelWidth, modelHidden}},
			{"ffn_down", []uint64{modelHidden, modelWidth}},
		} {
			all = append(all, tensor{fmt.Sprintf("blk.%d.%s.weight", layer, t.name), t.dims})
		}
	}
	return all
}

// writeModel writes the model in llama.cpp's format GGUF, the same one each time.
func writeModel(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := &ggufWriter{out: bufio.NewWriterSize(file, mib)}
	tensors := modelTensors()
	w.header(tensors)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // weights, not secrets
	for _, t := range tensors {
		w.align()
		w.weights(t, random)
	}
	if err := w.out.Flush(); err != nil {
		return err
	}
	return file.Close()
}

// ggufWriter writes numbers and strings as GGUF has them. An error stays with its buffered writer.
type ggufWriter struct {
	out     *bufio.Writer
	written uint64
}

func (w *ggufWriter) put(values ...any) {
	for _, value := range values {
		if text, ok := value.(string); ok {
			w.put(uint64(len(text)))
			_, _ = io.WriteString(w.out, text)
			w.written += uint64(len(text))
			continue
		}
		_ = binary.Write(w.out, binary.LittleEndian, value)
		w.written += uint64(binary.Size(value))
	}
}

func (w *ggufWriter) align() {
	for w.written%ggufAlignment != 0 {
		w.put(byte(0))
	}
}

// header writes what comes before the weights: what the model is, and where each tensor lies.
func (w *ggufWriter) header(tensors []tensor) {
	const version, typeUint32, typeFloat32, typeString = uint32(3), uint32(4), uint32(6), uint32(8)
	const halves, floats = uint32(1), uint32(0)
	settings := []struct {
		key   string
		value any
	}{
		{"general.architecture", "llama"},
		{"llama.context_length", uint32(modelContext)},
		{"llama.embedding_length", uint32(modelWidth)},
		{"llama.block_count", uint32(modelLayers)},
		{"llama.feed_forward_length", uint32(modelHidden)},
		{"llama.attention.head_count", uint32(modelHeads)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"llama.vocab_size", uint32(modelWords)},
		{"tokenizer.ggml.model", "none"},
	}
	w.put([]byte("GGUF"), version, uint64(len(tensors)), uint64(len(settings)))
	types := map[string]uint32{"uint32": typeUint32, "float32": typeFloat32, "string": typeString}
	for _, s := range settings {
		w.put(s.key, types[fmt.Sprintf("%T", s.value)], s.value)
	}
	var offset uint64
	for _, t := range tensors {
		kind := halves
		if len(t.dims) == 1 {
			kind = floats
		}
		w.put(t.name, uint32(len(t.dims)), t.dims, kind, offset)
		offset = (offset + t.bytes() + ggufAlignment - 1) / ggufAlignment * ggufAlignment
	}
}

// weights writes ones for a norm, and else 16-bit numbers of either sign between 2^-6 and 2^-5: enough for numbers to neither
// vanish nor overflow on their way through the layers.
func (w *ggufWriter) weights(t tensor, random *rand.Rand) {
	if len(t.dims) == 1 {
		for range t.dims[0] {
			w.put(float32(1))
		}
		return
	}
	const signsAndFractions, exponents = 0x83ff83ff83ff83ff, 0x2400240024002400
	var four [8]byte
	for range t.bytes() / 8 {
		binary.LittleEndian.PutUint64(four[:], random.Uint64()&signsAndFractions|exponents)
		_, _ = w.out.Write(four[:])
	}
	w.written += t.bytes()
}
