defmodule ExternalService.Service do
  # A started service: everything a call needs, made once by start and never changed. It is kept in a persistent term,
  # the cheapest thing to read; writing one is slow, but happens only when a service is started or stopped.
  @moduledoc false

  defstruct [
    :name,
    :version,
    :breaker,
    :breaker_options,
    :watch,
    :rate_limit,
    :concurrency,
    :melt,
    :retry,
    :schedule,
    :clock,
    :sleep,
    :telemetry,
    :options,
    cost: 1
  ]

  @type t :: %__MODULE__{
          name: ExternalService.service(),
          version: reference(),
          breaker: {module(), term()} | nil,
          breaker_options: keyword(),
          watch: :failures | :outcomes | :durations,
          rate_limit: struct() | nil,
          concurrency: struct() | nil,
          melt: :per_attempt | :per_call,
          retry: struct(),
          schedule: ExternalService.Native.schedule(),
          clock: ExternalService.Native.clock() | nil,
          sleep: (non_neg_integer() -> any()),
          telemetry: :all | :changes,
          options: keyword(),
          cost: pos_integer()
        }

  @spec get(ExternalService.service()) :: t() | nil
  def get(name), do: :persistent_term.get({__MODULE__, name}, nil)

  @spec put(t()) :: :ok
  def put(%__MODULE__{name: name} = service), do: :persistent_term.put({__MODULE__, name}, service)

  @spec delete(ExternalService.service()) :: boolean()
  def delete(name), do: :persistent_term.erase({__MODULE__, name})

  @spec names() :: [ExternalService.service()]
  def names, do: for({{__MODULE__, name}, %__MODULE__{}} <- :persistent_term.get(), do: name)
end
