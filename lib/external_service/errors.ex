defmodule ExternalService.Errors do
  # What the library's errors share. Each is an exception of its own; `call` returns it in `{:error, exception}` and
  # `call!` raises it. The fields are those that Errata looks for, so its functions take these errors as its own.
  @moduledoc false

  @params [:message, :reason, :context, :cause]

  defmacro __using__(options) do
    quote bind_quoted: [options: options] do
      @text Keyword.fetch!(options, :message)
      @http_status Keyword.fetch!(options, :http_status)
      @retryable Keyword.fetch!(options, :retryable)

      defexception message: @text,
                   reason: nil,
                   context: %{},
                   cause: nil,
                   env: nil,
                   kind: :infrastructure,
                   __errata_error__: true

      @type t :: %__MODULE__{
              message: String.t(),
              reason: term(),
              context: map(),
              cause: map() | nil,
              env: term(),
              kind: :infrastructure,
              __errata_error__: true
            }

      @impl true
      def exception(params) when is_list(params), do: ExternalService.Errors.build(__MODULE__, params)

      @doc "Returns whether the same call may succeed if it is made again later."
      @spec retryable?(t()) :: boolean()
      def retryable?(%__MODULE__{}), do: @retryable

      @doc "Returns the HTTP status that stands for this error."
      @spec http_status(t()) :: 100..599
      def http_status(%__MODULE__{}), do: @http_status

      @doc "Returns the error as a plain map, for a log or an encoder."
      @spec to_map(t()) :: map()
      def to_map(%__MODULE__{} = error), do: ExternalService.Errors.to_map(error)

      defimpl String.Chars do
        def to_string(error), do: Exception.message(error)
      end
    end
  end

  @doc false
  @spec build(module(), keyword()) :: Exception.t()
  def build(module, params) do
    case Keyword.keys(params) -- @params do
      [] -> struct!(module, params)
      unknown -> raise ArgumentError, "invalid param key(s) for an #{inspect(module)} error: #{inspect(unknown)}"
    end
  end

  @doc false
  @spec to_map(Exception.t()) :: map()
  def to_map(error) do
    error
    |> Map.take([:kind, :message, :reason, :context, :cause])
    |> Map.put(:error_type, error.__struct__)
  end
end

defmodule ExternalService.RetriesExhausted do
  @moduledoc """
  Every attempt of a call failed.

  `context` has `:service`, `:reason` (the last attempt's; `:reason_unknown` for a bare `:retry`) and `:attempts`. When the
  reason is an exception, `cause` is a map that holds it under `:value`.
  """
  use ExternalService.Errors,
    message: "exhausted all retries while calling the external service",
    http_status: 503,
    retryable: false
end

defmodule ExternalService.CircuitBreakerOpen do
  @moduledoc """
  The service's circuit breaker refused an attempt of the call. It was not made; those before it were.

  `context` has `:service` and `:retry_after`: milliseconds until the breaker can be tried again, or `:infinity`.
  """
  use ExternalService.Errors,
    message: "the circuit breaker for the external service is open",
    http_status: 503,
    retryable: true
end

defmodule ExternalService.RateLimited do
  @moduledoc """
  The service's rate limit refused an attempt of the call: its turn would not have come within `:wait`. It was not made;
  those before it were.

  `context` has `:service` and `:retry_after`: milliseconds until such a call can go out, or `:infinity` if it costs more
  than the limit.
  """
  use ExternalService.Errors,
    message: "the call was throttled beyond the configured rate limit wait time",
    http_status: 429,
    retryable: true
end

defmodule ExternalService.ServiceSaturated do
  @moduledoc """
  The service's concurrency limit refused an attempt of the call: there was no free slot, or none within `:wait`. It was
  not made; those before it were.

  `context` has `:service`, `:limit`, `:in_flight` and `:queued`.
  """
  use ExternalService.Errors,
    message: "the service's concurrency limit is fully in use",
    http_status: 503,
    retryable: true
end

defmodule ExternalService.NoEndpoint do
  @moduledoc """
  None of the service's endpoints could be called when an attempt was due. It was not made; those before it were.

  `context` has `:service`, `:endpoints` and `:retry_after`: milliseconds until the first of them can be tried again, or
  `:infinity`.
  """
  use ExternalService.Errors,
    message: "no endpoint of the external service can be called",
    http_status: 503,
    retryable: true
end

defmodule ExternalService.ServiceNotStarted do
  @moduledoc """
  The service was never started, or it was stopped.

  `context` has `:service`.
  """
  use ExternalService.Errors,
    message: "the external service has not been started",
    http_status: 500,
    retryable: false
end

defmodule ExternalService.AttemptTimeout do
  @moduledoc """
  The last attempt of a call took longer than its `:timeout`, and was ended.

  `context` has `:service`, `:timeout` (the milliseconds it had) and, in the call's result, `:attempts`.
  """
  use ExternalService.Errors,
    message: "the attempt to call the external service took too long",
    http_status: 504,
    retryable: true
end

defmodule ExternalService.DeadlineExceeded do
  @moduledoc """
  The time for the whole call was over, or would have been before its next attempt.

  `context` has `:service`, `:deadline` (the milliseconds there were), `:attempts`, `:reason` (why the last of them failed) and
  `:skipped`: whether nothing was tried at all.
  """
  use ExternalService.Errors,
    message: "the deadline of the call to the external service has passed",
    http_status: 504,
    retryable: false
end
