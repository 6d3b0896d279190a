/* Attributes of streams. They are kept and given back; nothing here runs differently for them. */
#include "stream.h"

#define SYNC_DOMAINS 4

static bool window_valid(const CUaccessPolicyWindow *w, int most_bytes) {
    return w->num_bytes <= (size_t)most_bytes && w->hitRatio >= 0 && w->hitRatio <= 1 &&
           w->hitProp <= CU_ACCESS_PROPERTY_PERSISTING && w->missProp <= CU_ACCESS_PROPERTY_STREAMING;
}

static CUresult set_window(struct CUstream_st *stream, const CUaccessPolicyWindow *window) {
    int most_bytes;

    TRY(cuDeviceGetAttribute(&most_bytes, CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, stream->context->device));
    REQUIRE(window_valid(window, most_bytes), CUDA_ERROR_INVALID_VALUE);
    stream->attributes.window = *window;
    return CUDA_SUCCESS;
}

/* A priority that there is not becomes the nearest that there is, as when a stream is made. */
static CUresult set_priority(struct CUstream_st *stream, int priority) {
    int least, greatest;

    TRY(cuCtxGetStreamPriorityRange(&least, &greatest));
    stream->priority = priority > least ? least : priority < greatest ? greatest : priority;
    return CUDA_SUCCESS;
}

static CUresult set(CUstream hStream, CUstreamAttrID attribute, const CUstreamAttrValue *value, bool per_thread) {
    struct CUstream_st *stream;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &stream));
    REQUIRE(value != NULL, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        return set_window(stream, &value->accessPolicyWindow);
    case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        REQUIRE(value->syncPolicy >= CU_SYNC_POLICY_AUTO && value->syncPolicy <= CU_SYNC_POLICY_BLOCKING_SYNC,
                CUDA_ERROR_INVALID_VALUE);
        stream->attributes.sync_policy = value->syncPolicy;
        return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_PRIORITY:
        return set_priority(stream, value->priority);
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        REQUIRE(value->memSyncDomainMap.default_ < SYNC_DOMAINS && value->memSyncDomainMap.remote < SYNC_DOMAINS,
                CUDA_ERROR_INVALID_VALUE);
        stream->attributes.domain_map = value->memSyncDomainMap;
        return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
        REQUIRE(value->memSyncDomain <= CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE, CUDA_ERROR_INVALID_VALUE);
        stream->attributes.domain = value->memSyncDomain;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult get(CUstream hStream, CUstreamAttrID attribute, CUstreamAttrValue *value, bool per_thread) {
    struct CUstream_st *stream;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &stream));
    REQUIRE(value != NULL, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        value->accessPolicyWindow = stream->attributes.window;
        return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        value->syncPolicy = stream->attributes.sync_policy;
        return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_PRIORITY:
        value->priority = stream->priority;
        return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        value->memSyncDomainMap = stream->attributes.domain_map;
        return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
        value->memSyncDomain = stream->attributes.domain;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy(CUstream to, CUstream from, bool per_thread) {
    struct CUstream_st *target, *source;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, to, per_thread, &target));
    TRY(stream_find(context, from, per_thread, &source));
    target->attributes = source->attributes;
    target->priority = source->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value_out) {
    return get(hStream, attr, value_out, false);
}

CUresult cuStreamGetAttribute_ptsz(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value_out) {
    return get(hStream, attr, value_out, true);
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value) {
    return set(hStream, attr, value, false);
}

CUresult cuStreamSetAttribute_ptsz(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value) {
    return set(hStream, attr, value, true);
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src) {
    return copy(dst, src, false);
}

CUresult cuStreamCopyAttributes_ptsz(CUstream dst, CUstream src) {
    return copy(dst, src, true);
}
