"""Settings of the FastAPI service, read from the environment."""

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores
from photodup.core.settings import DEFAULT_NAME, DEFAULT_PRETRAINED, header_text
from photodup.embedding.backends import PRECISIONS
from photodup.embedding.engines.model import SUPPORTED


class ServiceSettings(BaseSettings):
    """Each field is an environment variable of the same name in capitals."""

    model_config = SettingsConfigDict(protected_namespaces=(), extra="ignore")

    model_name: str = DEFAULT_NAME
    model_pretrained: str = DEFAULT_PRETRAINED
    device: str | None = Field(None, description="cpu, cuda, mps; the best there is by default")
    engine: str | None = Field(
        None,
        description=f"{', '.join(SUPPORTED)}, triton (computed by a Triton); by default chosen by the weights",
    )
    precision: str = Field("fp32", description=f"{', '.join(PRECISIONS)}, as far as the engine has it")
    threads: int = Field(default_factory=available_cores, ge=1, description="CPU threads of the model")
    host: str = Field("127.0.0.1", description="0.0.0.0 to be reachable from other machines")
    port: int = Field(8002, ge=0, le=65535)
    log_level: str = Field("info", pattern="(?i)^(critical|error|warning|info|debug|trace)$")
    batch_max: int = Field(32, ge=1, description="images computed together across requests; 1 is off")
    batch_delay_ms: float = Field(5.0, ge=0, description="longest wait for requests to compute together")
    max_images: int = Field(64, ge=1, description="images in one request")
    max_body_mb: float = Field(100, gt=0, description="body of one request")
    max_buffered_mb: float = Field(512, gt=0, description="bodies of all requests in flight")
    max_in_flight: int = Field(256, ge=1, description="complete requests in flight; more are answered 503")
    max_wait_s: float = Field(
        2.0, gt=0, description="longest wait, not counting the work on a request's own images; beyond it 503"
    )
    max_pixels: int = Field(50_000_000, ge=1, description="width × height of one image")
    max_request_pixels: int = Field(500_000_000, ge=1, description="of all images of one request")
    decode_seconds: float = Field(10.0, gt=0, description="deadline of images other than ordinary JPEGs")
    body_seconds: float = Field(120.0, gt=0, description="until the body of a request is complete")
    min_body_rate: float = Field(2000.0, ge=0, description="bytes a second at which a body must arrive")
    drain_seconds: int = Field(20, ge=1, description="time for requests in flight when stopping")
    api_key: SecretStr | None = Field(None, description="required from every request except health checks")
    jpeg_scale: str = Field(
        "auto",
        pattern="^(auto|whole|reduced)$",
        description="of large JPEGs; auto: reduced where the accuracy check of this model allowed it",
    )
    decode_threads: int = Field(default_factory=lambda: min(8, available_cores()), ge=1)

    @field_validator("api_key")
    @classmethod
    def _key(cls, key: SecretStr | None) -> SecretStr | None:
        try:
            text = header_text(key.get_secret_value(), "API_KEY") if key else ""
        except PhotodupError as error:
            raise ValueError(str(error).rstrip(".")) from None
        if key and not text:
            raise ValueError("white space alone is no key, and the service would be open to all")
        return SecretStr(text) if text else None


def read_settings() -> ServiceSettings:
    """Read the environment.

    Raises:
        PhotodupError: a variable has an invalid value; names it.
    """
    try:
        return ServiceSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).upper()
        setting = name if name == "API_KEY" else f"{name}={first['input']}"
        raise PhotodupError(f"{setting}: {first['msg'].removeprefix('Value error, ')}.") from None
