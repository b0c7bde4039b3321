"""For each claim: what a run needs for a verdict, and that verdict argued against once.

An objection is the author's own: what else in this set-up could have produced what is seen here. It argues about one
verdict and is shown only beside that one; a verdict that nobody argued against yet gets `NONE_WRITTEN`.
"""

from photodup.study.claims.predicates import CONTRADICTED, INCONCLUSIVE, REPRODUCED

NONE_WRITTEN = "No objection was written for this verdict."

_TRT = "a CUDA GPU with TensorRT"
_N04, _N05, _N06 = "notebook 04 at full size", "notebook 05 at full size", "notebook 06 at full size"
_N07, _N08, _N09 = "notebook 07 at full size", "notebook 08 at full size", "notebook 09 at full size"
_LINKS = "notebook 11 with its emulated links (Linux, network namespaces)"
_ONE_BUILD = "One driver, one TensorRT version and one graph do not stand for an architecture."

# claim id: (what a run needs, verdict -> the objection to it)
NOTES: dict[str, tuple[str, dict[str, str]]] = {
    "grpc-slower-single": (
        _N08,
        {
            REPRODUCED: "Both clients are Python, and grpcio runs a thread of its own beside the caller's: with "
            "two cores shared by client and server that thread may cost what a client on its own "
            "machine would not pay.",
            CONTRADICTED: "Over HTTP the Python client joins its buffers before it sends, a copy that a client in "
            "another language need not make: gRPC may look fast beside it.",
            INCONCLUSIVE: "On loopback the intervals are wider than the published 4 %, and over a link its round "
            "trips hide so small a difference: a quieter machine may still show one, either way.",
        },
    ),
    "grpc-faster-batch-32": (
        _N08,
        {
            REPRODUCED: "The HTTP client builds its body by joining buffers, one more copy of 19 MB than gRPC "
            "makes here; a client in another language, or a link slower than memory, need not show "
            "the difference.",
            CONTRADICTED: "Client and server share two cores, and gRPC's many small frames cost CPU time on both "
            "sides: with a machine each the order may turn.",
            INCONCLUSIVE: "On this CPU the batch computes for over a second and crosses loopback in milliseconds: a "
            "real difference between the protocols is lost in it, and only the emulated GPU could "
            "show it.",
        },
    ),
    "http-scales-better": (
        _N08,
        {
            REPRODUCED: "Sixteen connections have sixteen congestion windows and a shared channel has one: over a "
            "link that, and not HTTP, may be the difference.",
            CONTRADICTED: "grpcio sends outside Python's lock and the HTTP client inside it: sixteen processes in "
            "place of sixteen threads could turn the order.",
            INCONCLUSIVE: "Sixteen workers are threads of one Python process on both sides of the comparison: its "
            "lock, not the protocol, may be what both saturate, and the published clients may have "
            "been processes.",
        },
    ),
    "shared-channel-contends": (
        _N08,
        {
            REPRODUCED: "Over a long link one connection has one congestion window: what a channel each gains may "
            "be TCP's windows, and not the end of a contention in the client.",
            CONTRADICTED: "One Python process holds all channels, and its lock may cost more than sharing did: "
            "clients in processes of their own could gain from a channel each.",
            INCONCLUSIVE: "Loopback has no flow-control window to fill and one process holds all channels, so a "
            "difference could hardly show there; over a long link one connection has one congestion "
            "window, and that, not the channel, may be what is shared.",
        },
    ),
    "json-encoding": (
        _N04,
        {
            REPRODUCED: "The factor belongs to Python's encoder and to a tensor already in memory: a faster JSON "
            "library divides it, and counting the client's own decoding of the photograph shrinks it "
            "to a few times.",
        },
    ),
    "json-bottleneck": (
        _N04,
        {
            REPRODUCED: "On loopback bytes are free, so only the CPU cost of text is seen; over the published "
            "path five times the bytes would have added to it.",
        },
    ),
    "gpu-decides-engine": (
        _TRT,
        {
            REPRODUCED: _ONE_BUILD,
            CONTRADICTED: _ONE_BUILD,
        },
    ),
    "network-dominates": (
        _LINKS,
        {
            REPRODUCED: "The emulated GPU waits 4 ms and the link has no other traffic: the share says how fast "
            "the server is, and a slower one or a batch would give a smaller share.",
            CONTRADICTED: "The CPU computes for 50 ms where a GPU needs 4: a slow server takes its share from any "
            "link, so this says nothing about the link.",
            INCONCLUSIVE: "The share follows from the server's own time: the emulated GPU waits 4 ms, the CPU "
            "computes for 50, and the emulated link has no other traffic, so the same link gives "
            "either verdict.",
        },
    ),
    "bytes-are-the-bottleneck": (
        "notebook 10 with its emulated links (Linux, network namespaces)",
        {
            REPRODUCED: "On a link slow enough the bytes do take longer than the round trips of a growing window: "
            "which law fits follows from the rate that was chosen for the link.",
            CONTRADICTED: "The link is emulated with a fixed rate, a deep queue and no loss; on a real path with "
            "loss or a proxy one connection may well be rate-limited, which looks like bandwidth to "
            "that client.",
            INCONCLUSIVE: "On short or slow links the two laws lie close together, and both leave out the server's "
            "own time: where neither fits better, nothing is said about other links.",
        },
    ),
    "jpeg-beats-tensor-remotely": (
        _LINKS,
        {
            REPRODUCED: "Payload and server are still changed together: the fair opponent is Triton with the same "
            "JPEG (notebook 11), and over a link this slow whoever sends less wins.",
            **dict.fromkeys(
                (CONTRADICTED, INCONCLUSIVE),
                "PyTorch here computes tens of milliseconds longer than ONNX Runtime on the same CPU, "
                "which a GPU would not: on a warm connection that alone can turn the order round.",
            ),
        },
    ),
    "payload-not-server": (
        _LINKS,
        {
            REPRODUCED: "On a slow link the bytes take so long that servers far less alike than these would look "
            "the same.",
            CONTRADICTED: "The two servers also run different engines: on a CPU their compute differs by more than "
            "everything else, so equal payloads cannot make them equal here; the emulated GPU has no "
            "PyTorch to compare with.",
            INCONCLUSIVE: "On this CPU the engines differ by tens of milliseconds and a link's noise is of that "
            "size: it could be decided on a GPU, where both compute in a few.",
        },
    ),
    "gpu-advantage": (
        _N06,
        {
            REPRODUCED: "A batch of one on a fast GPU is mostly kernel launches, which torch.compile or a CUDA "
            "graph takes away: the factor would be eager mode's, not PyTorch's.",
            CONTRADICTED: "This is a CPU with FP32 on both sides. On a GPU eager PyTorch pays a kernel launch per "
            "operator, which a batch of one shows most, so the factor there may be larger (but was "
            "never measured there).",
        },
    ),
    "onnx-slower-at-32": (
        _N06,
        {
            CONTRADICTED: "Both engines call the same kind of CPU kernels; the claim was about a GPU, where the "
            "choice of kernels and TF32 could differ by more.",
        },
    ),
    "gap-widens-with-batch": (
        _N06,
        {
            REPRODUCED: "Compute takes most of this batch's time on a CPU and is alike for both, so it dilutes "
            "the bytes; the sign is what is judged, the factor is not comparable.",
        },
    ),
    "dynamic-batching-ties": (
        _N06,
        {
            REPRODUCED: "Both servers here batch across requests and both saturate the same two cores: any two "
            "servers would tie, with or without a batcher.",
            CONTRADICTED: "The engines' own compute differs on this CPU, and a full server's throughput shows just "
            "that: batching need not enter at all.",
            INCONCLUSIVE: "Eight in flight on two cores come in waves, and the intervals are far wider than the ten "
            "per cent that is asked: the same points measured longer may well fall inside it.",
        },
    ),
    "dynamic-batching-two-to-three": (
        _N06,
        {
            CONTRADICTED: "The PyTorch service here has a micro-batcher that the published one had not, and a CPU "
            "gains little from batches; on a GPU without that batcher the claim may hold.",
        },
    ),
    "pytorch-queues": (
        _N06,
        {
            CONTRADICTED: "Ours batches across requests by default; what is refuted is a service like this one, not "
            "the published one, which answered one by one.",
        },
    ),
    "client-batches-are-best": (
        _N06,
        {
            **dict.fromkeys(
                (REPRODUCED, INCONCLUSIVE),
                "One loopback connection can carry everything, and two cores are full either way: the "
                "advice is about a GPU that single requests leave idle.",
            ),
            CONTRADICTED: "Thirty-two photographs are decoded one after the other where one request carries them, "
            "and in parallel where each comes alone: the advice is about what the device does.",
        },
    ),
    "cpu-batching-gains": (
        _N06,
        {
            **dict.fromkeys(
                (CONTRADICTED, INCONCLUSIVE),
                "Two cores are busy with one image already; more cores, or another vector width, leave "
                "more for a batch to gain.",
            ),
        },
    ),
    "batch-32-under-two-seconds": (
        _N06,
        {
            REPRODUCED: "The published run needed 5.6 s on a GPU: the bound is met here because loopback carries "
            "19 MB in milliseconds, not because a CPU computes faster.",
            CONTRADICTED: "The bytes alone take 0.7 s at 210 Mbit/s and this CPU computes for more than a second: "
            "over the same link a GPU would meet the bound with time to spare.",
            INCONCLUSIVE: "Where it is met, loopback carries 19 MB in milliseconds; over 210 Mbit/s they take 0.7 "
            "s: the bound judges the link as much as the server.",
        },
    ),
    "within-30-percent": (
        _N06,
        {
            REPRODUCED: "Compute takes over a second of this batch on a CPU and is alike for both, which hides "
            "the bytes; a GPU would leave little but bytes on the same link, and the goal could be "
            "missed again.",
            CONTRADICTED: "Over a slow enough link every tensor misses it, whatever the server: with the same "
            "payload on both sides it might be met.",
            INCONCLUSIVE: "Compute is alike for both and hides the bytes on a CPU: where the bound falls inside the "
            "interval, a GPU on the same link would be far beyond it.",
        },
    ),
    "onnx-parity": (
        "notebook 02 at full size",
        {
            REPRODUCED: "Random weights have no outliers, and trained ones can stress an approximation more; the "
            "comparison also shares its preprocessing, so an error there would be common to both.",
        },
    ),
    "cold-start": (
        _N06,
        {
            **dict.fromkeys(
                (REPRODUCED, CONTRADICTED, INCONCLUSIVE),
                "Files come from a warm page cache and two starts are few; the published figure may count "
                "a container or a driver, which do not exist here.",
            ),
        },
    ),
    "trt-compute": (
        _TRT,
        {
            REPRODUCED: "Half precision alone gives about twice on tensor cores: the factor holds two changes.",
            CONTRADICTED: _ONE_BUILD,
        },
    ),
    "fp16-is-safe": (
        _N05,
        {
            REPRODUCED: "Rounding every operator's result is not what a fused engine does, the large network has "
            "random weights, and the trained one is not CLIP: a real FP16 engine may be better or "
            "worse.",
        },
    ),
    "pytorch-wins-batch-32": (
        _N06,
        {
            REPRODUCED: "Over a link sixty times the bytes decide, and not PyTorch: the fair opponent is Triton "
            "with the same JPEG (notebook 11), and without a link only compute is left.",
            CONTRADICTED: "On loopback only compute is left, and ONNX Runtime may need less of it on this CPU: that "
            "refutes nothing that a remote client saw.",
            INCONCLUSIVE: "The published difference came over a network where payloads differ sixty times; on "
            "loopback only compute is left, so this neither confirms nor refutes what a remote client "
            "saw.",
        },
    ),
    "server-overhead": (
        "notebook 03 at full size",
        {
            REPRODUCED: "The same ten milliseconds would appear if anything else made the scheduler sleep that "
            "long; that the default configuration does not wait is what ties it to the setting.",
        },
    ),
    "four-gpus": (
        _N07,
        {
            CONTRADICTED: "Emulated devices share no PCIe, no power limit and no memory, and they wait instead of "
            "computing: real ones can scale worse. The emulation shows only that Triton and the "
            "client are no obstacle.",
        },
    ),
    "saturates-at-32": (
        _N07,
        {
            CONTRADICTED: "Emulated devices never throttle and the client sits beside the server; a fall beyond the "
            "peak could come from a longer queue in a client or a proxy that is not here.",
        },
    ),
    "little-is-batched": (
        _N06,
        {
            REPRODUCED: "Sixteen requests over a narrow uplink starve the batcher: as many clients as a service "
            "has would fill it.",
            CONTRADICTED: "A CPU takes so long for an image that others queue behind it and are batched; a fast GPU "
            "would be idle before the next arrives, so batches there stay small for another reason "
            "than the uplink.",
            INCONCLUSIVE: "The place decides, since requests must arrive faster than the server works: a narrow "
            "uplink keeps them apart, this CPU is slow enough to let them meet, and a fast GPU might "
            "not be.",
        },
    ),
    "pytorch-leads-all": (
        _LINKS,
        {
            REPRODUCED: "The factor grows with the round trip and falls with the rate of the link: this one "
            "happens to lie where 2 to 4.5 is met.",
            CONTRADICTED: "PyTorch's longer compute on this CPU works against the claim, and the published factor "
            "came from a fresh connection per request on one side only.",
            INCONCLUSIVE: "PyTorch's longer compute on this CPU works against the claim, and the published factor "
            "came from a fresh connection per request on one side only; warm and new connections "
            "disagree here.",
        },
    ),
    "fastapi-scales": (
        _N06,
        {
            CONTRADICTED: "Two cores are full at eight requests already; a server with more cores could use "
            "sixteen.",
        },
    ),
    "six-pods": (
        _N09,
        {
            CONTRADICTED: "A simulation of the published manifests with one measured pod: their cluster may have "
            "had another quota than the listed one, as the published six pods would suggest.",
        },
    ),
    "reacts-in-30-seconds": (
        _N09,
        {
            **dict.fromkeys(
                (REPRODUCED, CONTRADICTED, INCONCLUSIVE),
                "Simulated: the metrics period and its phase are assumptions about a cluster nobody here "
                "saw, and they make up most of the number.",
            ),
        },
    ),
}
