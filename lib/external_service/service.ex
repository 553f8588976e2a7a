defmodule ExternalService.Service do
  # A started service: everything a call needs, made once by start and never changed. It is kept in a persistent term,
  # the cheapest thing to read; writing one is slow, but happens only when a service is started or stopped.
  #
  # A call has its own copy where it has options of its own, or a deadline (`until`).
  @moduledoc false

  alias ExternalService.RetryOptions

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
    :budget,
    :module,
    :until,
    :part,
    :instances,
    :origin,
    :maker,
    :route,
    argument: :none,
    cost: 1,
    timeout: :infinity,
    deadline: :infinity,
    fallback: nil
  ]

  # What has no value but `nil` in `none/1` is never asked of that one.
  @type t :: %__MODULE__{
          name: ExternalService.service(),
          version: reference() | nil,
          breaker: {module(), term()} | nil,
          breaker_options: keyword() | nil,
          watch: :failures | :outcomes | :durations | nil,
          rate_limit: struct() | nil,
          concurrency: struct() | nil,
          melt: :per_attempt | :per_call | nil,
          retry: struct() | nil,
          schedule: ExternalService.Native.schedule() | nil,
          clock: ExternalService.Native.clock() | nil,
          sleep: (non_neg_integer() -> any()) | nil,
          telemetry: :all | :changes | nil,
          options: keyword() | nil,
          budget: ExternalService.Native.budget() | nil,
          module: module() | nil,
          part: (t(), term() -> t() | nil) | nil,
          instances: :ets.tid() | nil,
          origin: reference() | nil,
          maker: (term() -> term()) | nil,
          route: map() | nil,
          argument: :none | {:ok, term()},
          until: ExternalService.Deadline.t() | nil,
          cost: pos_integer(),
          timeout: pos_integer() | :infinity,
          deadline: pos_integer() | :infinity,
          fallback: ExternalService.Fallback.t() | nil
        }

  # What a call may bring along.
  @own [:retry, :schedule, :until, :cost, :timeout, :deadline, :fallback, :route]

  @doc "Returns `service` with what `call`, a call's copy of it or of its predecessor, brought along."
  @spec carry(t(), t()) :: t()
  def carry(%__MODULE__{} = service, %__MODULE__{} = call) do
    service = struct!(service, Map.take(call, @own) |> Map.to_list())
    if service.options[:endpoints], do: service, else: %{service | route: nil}
  end

  @doc "Stands for a service that is not started. One that is called like a module may be that module's."
  @spec none(ExternalService.service()) :: t()
  def none(name),
    do: %__MODULE__{name: name, module: if(is_atom(name), do: name), retry: %RetryOptions{}, telemetry: :all}

  @spec get(ExternalService.service()) :: t() | nil
  def get(name) do
    case :persistent_term.get({__MODULE__, name}, nil) do
      nil -> part(name)
      service -> service
    end
  end

  # `{service, key}` is a part of a service: one endpoint of it, or an instance.
  defp part({name, key}) do
    case started(name) do
      %__MODULE__{part: part} = service when part != nil -> part.(service, key)
      _none -> nil
    end
  end

  defp part(_name), do: nil

  @doc "Returns the service of this name that was started, and no part of one."
  @spec started(ExternalService.service()) :: t() | nil
  def started(name), do: :persistent_term.get({__MODULE__, name}, nil)

  @doc "Runs a change of a service, one at a time. Calls do not wait for it."
  @spec alone(ExternalService.service(), (() -> result)) :: result when result: term()
  def alone(name, change), do: :global.trans({{__MODULE__, name}, self()}, change, [node()])

  @spec put(t()) :: :ok
  def put(%__MODULE__{name: name} = service), do: :persistent_term.put({__MODULE__, name}, service)

  @spec delete(ExternalService.service()) :: boolean()
  def delete(name), do: :persistent_term.erase({__MODULE__, name})

  @doc "Says what to do about a service that is not started."
  @spec not_started(ExternalService.service()) :: String.t()
  def not_started(name) do
    "Service #{inspect(name)} has not been started. To initialize it, call " <>
      "ExternalService.start(#{inspect(name)}) in your application start code."
  end

  @spec names() :: [ExternalService.service()]
  def names, do: for({{__MODULE__, name}, %__MODULE__{}} <- :persistent_term.get(), do: name)
end
