"""For each claim: what a run needs for a verdict, and the verdict argued against once.

The second sentence is the author's own objection to what is seen here, whichever way it went: what else in this
set-up could have produced it. It stands beside the verdict wherever that is shown.
"""

_TRT = "a CUDA GPU with TensorRT"
_N04, _N05, _N06 = "notebook 04 at full size", "notebook 05 at full size", "notebook 06 at full size"
_N07, _N08, _N09 = "notebook 07 at full size", "notebook 08 at full size", "notebook 09 at full size"
_LINKS = "notebook 11 with its emulated links (Linux, network namespaces)"

# claim id: (what a run needs, the objection)
NOTES: dict[str, tuple[str, str]] = {
    "grpc-slower-single": (
        _N08,
        "Both clients are Python, and grpcio runs a thread of its own beside the caller's: with two cores shared by "
        "client and server that thread may cost what a client on its own machine would not pay.",
    ),
    "grpc-faster-batch-32": (
        _N08,
        "The HTTP client builds its body by joining buffers, one more copy of 19 MB than gRPC makes here; a client in "
        "another language, or a link slower than memory, need not show the difference.",
    ),
    "http-scales-better": (
        _N08,
        "Sixteen workers are threads of one Python process on both sides of the comparison: its lock, not the protocol, "
        "may be what both saturate, and the published clients may have been processes.",
    ),
    "shared-channel-contends": (
        _N08,
        "Loopback has no flow-control window to fill and one process holds all channels; over a long link one "
        "connection has one congestion window, which is where sharing would hurt.",
    ),
    "json-encoding": (
        _N04,
        "The factor belongs to Python's encoder and to a tensor already in memory: a faster JSON library divides it, and "
        "counting the client's own decoding of the photograph shrinks it to a few times.",
    ),
    "json-bottleneck": (
        _N04,
        "On loopback bytes are free, so only the CPU cost of text is seen; over the published path five times the bytes "
        "would have added to it.",
    ),
    "gpu-decides-engine": (
        _TRT,
        "One driver, one TensorRT version and one graph do not stand for an architecture.",
    ),
    "network-dominates": (
        _LINKS,
        "The share follows from the server's own time: the emulated GPU waits 4 ms, the CPU computes for 50, and the "
        "emulated link has no other traffic, so the same link gives either verdict.",
    ),
    "bytes-are-the-bottleneck": (
        "notebook 10 with its emulated links (Linux, network namespaces)",
        "The link is emulated with a fixed rate, a deep queue and no loss; on a real path with loss or a proxy one "
        "connection may well be rate-limited, which looks like bandwidth to that client.",
    ),
    "jpeg-beats-tensor-remotely": (
        _LINKS,
        "PyTorch here computes tens of milliseconds longer than ONNX Runtime on the same CPU, which a GPU would not: on "
        "a warm connection that alone can turn the order round.",
    ),
    "payload-not-server": (
        _LINKS,
        "The two servers also run different engines: on a CPU their compute differs by more than everything else, so "
        "equal payloads cannot make them equal here; the emulated GPU has no PyTorch to compare with.",
    ),
    "gpu-advantage": (
        _N06,
        "This is a CPU with FP32 on both sides. On a GPU eager PyTorch pays a kernel launch per operator, which a batch "
        "of one shows most, so the factor there may be larger (but was never measured there).",
    ),
    "onnx-slower-at-32": (
        _N06,
        "Both engines call the same kind of CPU kernels; the claim was about a GPU, where the choice of kernels and TF32 "
        "could differ by more.",
    ),
    "gap-widens-with-batch": (
        _N06,
        "Compute takes most of this batch's time on a CPU and is alike for both, so it dilutes the bytes; the sign is "
        "what is judged, the factor is not comparable.",
    ),
    "dynamic-batching-ties": (
        _N06,
        "Both servers here batch across requests and both saturate the same two cores: any two servers would tie, "
        "with or without a batcher.",
    ),
    "dynamic-batching-two-to-three": (
        _N06,
        "The PyTorch service here has a micro-batcher that the published one had not, and a CPU gains little from "
        "batches; on a GPU without that batcher the claim may hold.",
    ),
    "pytorch-queues": (
        _N06,
        "Ours batches across requests by default; what is refuted is a service like this one, not the published "
        "one, which answered one by one.",
    ),
    "client-batches-are-best": (
        _N06,
        "One loopback connection can carry everything, and two cores are full either way: the advice is about a GPU that "
        "single requests leave idle.",
    ),
    "cpu-batching-gains": (
        _N06,
        "Two cores are busy with one image already; more cores, or another vector width, leave more for a batch to gain.",
    ),
    "batch-32-under-two-seconds": (
        _N06,
        "The published run needed 5.6 s on a GPU: the bound is met here because loopback carries 19 MB in milliseconds, "
        "not because a CPU computes faster.",
    ),
    "within-30-percent": (
        _N06,
        "On loopback the tensors cost nothing, and the criterion was missed over a network: this says that the server "
        "was not the reason, and nothing about that network.",
    ),
    "onnx-parity": (
        "notebook 02 at full size",
        "Random weights have no outliers, and trained ones can stress an approximation more; the comparison also shares "
        "its preprocessing, so an error there would be common to both.",
    ),
    "cold-start": (
        _N06,
        "Files come from a warm page cache and two starts are few; the published figure may count a container or a "
        "driver, which do not exist here.",
    ),
    "trt-compute": (
        _TRT,
        "Half precision alone gives about twice on tensor cores: the factor holds two changes.",
    ),
    "fp16-is-safe": (
        _N05,
        "Rounding every operator's result is not what a fused engine does, the large network has random weights, and the "
        "trained one is not CLIP: a real FP16 engine may be better or worse.",
    ),
    "pytorch-wins-batch-32": (
        _N06,
        "The published difference came over a network where payloads differ sixty times; on loopback only compute is "
        "left, so this neither confirms nor refutes what a remote client saw.",
    ),
    "server-overhead": (
        "notebook 03 at full size",
        "The same ten milliseconds would appear if anything else made the scheduler sleep that long; that the default "
        "configuration does not wait is what ties it to the setting.",
    ),
    "four-gpus": (
        _N07,
        "Emulated devices share no PCIe, no power limit and no memory, and they wait instead of computing: real ones "
        "can scale worse. The emulation shows only that Triton and the client are no obstacle.",
    ),
    "saturates-at-32": (
        _N07,
        "Emulated devices never throttle and the client sits beside the server; a fall beyond the peak could come "
        "from a longer queue in a client or a proxy that is not here.",
    ),
    "little-is-batched": (
        _N06,
        "A CPU takes so long for an image that others queue behind it and are batched; a fast GPU would be idle before "
        "the next arrives, so batches there stay small for another reason than the uplink.",
    ),
    "pytorch-leads-all": (
        _LINKS,
        "PyTorch's longer compute on this CPU works against the claim, and the published factor came from a fresh "
        "connection per request on one side only; warm and new connections disagree here.",
    ),
    "fastapi-scales": (
        _N06,
        "Two cores are full at eight requests already; a server with more cores could use sixteen.",
    ),
    "six-pods": (
        _N09,
        "A simulation of the published manifests with one measured pod: their cluster may have had another quota than "
        "the listed one, as the published six pods would suggest.",
    ),
    "reacts-in-30-seconds": (
        _N09,
        "Simulated: the metrics period and its phase are assumptions about a cluster nobody here saw, and they make up "
        "most of the number.",
    ),
}
