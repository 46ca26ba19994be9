"""What can go wrong in this package.

ServingError
├── ProgramMissingError       a program or file of Triton's is not installed
├── ProcessFailedError        a process that we started died, or was not ready in time
├── InvalidModelNameError     a model's name cannot be a name in Triton
├── ModelLoadError            Triton refused to load a version
├── DensePartError            an ONNX file cannot be a model's dense part
├── GoldenMismatchError       Triton's scores are not the trainer's: the version must take no traffic
│   └── DegradedGoldenError       they are of default rows, which is not the version's fault
├── NotCompleteError          a version's files are not all there yet
├── PreparationTimeoutError   reading a version's files took longer than it may
├── NothingServedError        no version could be made ready when serving began
├── TritonError               a call to Triton came back without an answer
│   ├── TritonUnavailableError    no server there, or it is stopping
│   ├── TritonTimeoutError        no answer within the deadline
│   ├── UnknownModelError         the server has no such model loaded
│   └── InvalidTensorsError       the server refused the request's tensors
├── SettingsError             a variable of the gateway's environment is unknown, missing or has no valid value
├── AddressError              the gateway or Triton cannot listen where it was told to
├── OverloadedError           the gateway answers as many requests as it may; try again
├── NotReadyError             the gateway is stopping, or Triton does not serve the version
├── NonFiniteScoreError       the model's score is not a number
├── ScoreFileError            a file of rows to be scored cannot be read as such
├── ControlError              a rollout, or the state that replicas share
│   ├── RolloutSpecError          a rollout's YAML has a key or value that does not work; names the place
│   ├── NoSuchRolloutError        no active rollout of the model has that name
│   ├── TransitionError           a rollout's status, or the model's state, does not allow the command
│   ├── AdmissionError            a version must not take traffic: older, quarantined, taken already
│   ├── NoVersionError            no loaded version may answer the request
│   │   ├── UnknownVersionError       the version that the request asked for is not loaded here
│   │   └── VersionNotThereYetError   no loaded version has at least the number that the request asked for
│   ├── NoSuchModelStateError     the store has no state of the model
│   ├── ConflictError             another writer was faster: read again, decide again
│   └── StateStoreError           the store cannot be used
│       ├── StoreUnavailableError     it is not reachable, locked for too long, or asks for another password
│       ├── StoreFullError            it has no room left, or takes no writes
│       └── CorruptStateError         what it holds is damaged, or of a newer release
├── AdminError                a call of the admin API, or what it tells others
│   ├── KeyFileError              the file of the first key cannot be read, is open to others, or holds no key
│   ├── UnauthenticatedError      the request has no key, or one that is not known
│   ├── ForbiddenError            the key's role does not allow the command
│   ├── TooManyFailuresError      too many wrong keys came from one address
│   ├── NoSuchKeyError            no key has that name
│   ├── KeyExistsError            another key has that name
│   ├── IdempotencyError          an Idempotency-Key was used for another command before
│   ├── GateClosedError           a gate for another tool's webhook is closed: the analysis has not said so yet
│   ├── DeliveryError             a receiver of events did not take one
│   └── AdminCallError            an admin API refused a call of ours, or cannot be reached
├── GatewayError              the gateway refused a request of ours, or cannot be reached
└── RequestError              a request that cannot be answered as it is; names the field
    ├── MalformedBodyError        it is not JSON
    ├── InvalidFieldError         a field of the request is missing, unknown or of the wrong type
    ├── NoCandidatesError         nothing is to be scored
    ├── TooManyCandidatesError    more is to be scored than one request may hold
    ├── UnknownFeatureError       the model has no such feature
    ├── FeatureTwiceError         a feature stands in the context and in a candidate
    ├── WrongValueError           a feature's value is not of its type, or not a finite number
    ├── BodyTooLargeError         the body has more bytes than it may
    ├── HeadersTooLargeError      the headers have more bytes than they may
    ├── NoSuchModelError          the gateway serves no such model
    └── DeadlineError             the time for the answer is over
"""

_LONGEST_PATH = 200


class ServingError(Exception):
    """Base class of the package's errors."""


class ProgramMissingError(ServingError):
    """A program or file of Triton's is not installed."""


class ProcessFailedError(ServingError):
    """A process that we started died, or was not ready in time."""


class InvalidModelNameError(ServingError):
    """A model's name cannot be a name in Triton."""


class ModelLoadError(ServingError):
    """Triton refused to load a version."""


class DensePartError(ServingError):
    """An ONNX file cannot be a model's dense part."""


class GoldenMismatchError(ServingError):
    """Triton's scores are not the trainer's: the version must take no traffic."""


class DegradedGoldenError(GoldenMismatchError):
    """Golden requests were answered with default rows, which is not the version's fault."""


class NotCompleteError(ServingError):
    """A version's files are not all there yet."""


class PreparationTimeoutError(ServingError):
    """Reading a version's files took longer than it may."""


class NothingServedError(ServingError):
    """No version could be made ready when serving began."""


class TritonError(ServingError):
    """A call to Triton came back without an answer."""


class TritonUnavailableError(TritonError):
    """No server there, or it is stopping."""


class TritonTimeoutError(TritonError):
    """No answer within the deadline."""


class UnknownModelError(TritonError):
    """The server has no such model loaded."""


class InvalidTensorsError(TritonError):
    """The server refused the request's tensors."""


class SettingsError(ServingError):
    """A variable of the gateway's environment is unknown, missing or has no valid value."""


class AddressError(ServingError):
    """The gateway or Triton cannot listen where it was told to."""


class OverloadedError(ServingError):
    """The gateway answers as many requests as it may; try again."""


class NotReadyError(ServingError):
    """The gateway is stopping, or Triton does not serve the version."""


class NonFiniteScoreError(ServingError):
    """The model's score is not a number."""


class ScoreFileError(ServingError):
    """A file of rows to be scored cannot be read as such."""


class ControlError(ServingError):
    """A rollout, or the state that replicas share."""


class RolloutSpecError(ControlError):
    """A rollout's YAML has a key or value that does not work; names the place."""


class NoSuchRolloutError(ControlError):
    """No active rollout of the model has that name."""


class TransitionError(ControlError):
    """A rollout's status, or the model's state, does not allow the command."""


class AdmissionError(ControlError):
    """A version must not take traffic: it is older, quarantined or taken already."""


class NoVersionError(ControlError):
    """No loaded version may answer the request."""


class UnknownVersionError(NoVersionError):
    """The version that the request asked for is not loaded here."""


class VersionNotThereYetError(NoVersionError):
    """No loaded version has at least the number that the request asked for; soon one may."""


class NoSuchModelStateError(ControlError):
    """The store has no state of the model."""


class ConflictError(ControlError):
    """Another writer was faster: read again, decide again."""


class StateStoreError(ControlError):
    """The store cannot be used."""


class StoreUnavailableError(StateStoreError):
    """The store is not reachable, locked for too long, or asks for another password."""


class StoreFullError(StateStoreError):
    """The store has no room left, or takes no writes."""


class CorruptStateError(StateStoreError):
    """What the store holds is damaged, or of a newer release."""


class AdminError(ServingError):
    """A call of the admin API, or what it tells others."""


class KeyFileError(AdminError):
    """The file of the first key cannot be read, is open to others, or holds no key."""


class UnauthenticatedError(AdminError):
    """The request has no key, or one that is not known."""


class ForbiddenError(AdminError):
    """The key's role does not allow the command."""


class TooManyFailuresError(AdminError):
    """Too many wrong keys came from this address; wait before the next attempt."""


class NoSuchKeyError(AdminError):
    """No key has that name."""


class KeyExistsError(AdminError):
    """Another key has that name."""


class IdempotencyError(AdminError):
    """This Idempotency-Key was used for another command before."""


class GateClosedError(AdminError):
    """The gate is closed: the analysis has not said so yet."""


class DeliveryError(AdminError):
    """A receiver of events did not take one."""


class AdminCallError(AdminError):
    """An admin API refused a call of ours, or cannot be reached."""


class GatewayError(ServingError):
    """The gateway refused a request of ours, or cannot be reached."""


class RequestError(ServingError):
    """A request that cannot be answered as it is.

    Args:
        message: What is wrong with the field, what was expected and how to fix it.
        path: The field, like `candidates[3].C1`; empty where the request as a whole is meant. A long one is cut, as it
            may be the caller's own words, and a gRPC status has no room for many.
    """

    def __init__(self, message: str, path: str = "") -> None:
        if len(path) > _LONGEST_PATH:
            path = path[:_LONGEST_PATH] + "..."
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class MalformedBodyError(RequestError):
    """The body is not JSON."""


class InvalidFieldError(RequestError):
    """A field of the request is missing, unknown or of the wrong type."""


class NoCandidatesError(RequestError):
    """Nothing is to be scored."""


class TooManyCandidatesError(RequestError):
    """More is to be scored than one request may hold."""


class UnknownFeatureError(RequestError):
    """The model has no such feature."""


class FeatureTwiceError(RequestError):
    """A feature stands in the context and in a candidate."""


class WrongValueError(RequestError):
    """A feature's value is not of its type, or not a finite number."""


class BodyTooLargeError(RequestError):
    """The body has more bytes than it may."""


class HeadersTooLargeError(RequestError):
    """The headers have more bytes than they may."""


class NoSuchModelError(RequestError):
    """The gateway serves no such model."""


class DeadlineError(RequestError):
    """The time for the answer is over."""
