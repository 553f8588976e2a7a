defmodule ExternalService.CircuitBreaker.Installed do
  # A service's breaker, as those who hold the service handle it: the pipeline, starting and stopping, the hand. `nil` is
  # a service without a breaker.
  @moduledoc false

  alias ExternalService.CircuitBreaker.{Basic, Settings}
  alias ExternalService.{Options, Service}

  @type t :: {module(), term()} | nil

  # What a backend of the reference is installed with.
  @always [:tolerate, :within, :reset]

  @doc "Makes the breaker that resolved options describe."
  @spec install(term(), keyword()) :: t()
  def install(service, settings), do: maker(settings).(service)

  @doc "Returns a function that makes such breakers, one for each service it is given."
  @spec maker(keyword()) :: (term() -> t())
  def maker(settings) do
    {backend, own} = Settings.backend(settings)
    options = telling(settings) ++ own

    cond do
      not Settings.any?(settings) -> fn _service -> nil end
      function_exported?(backend, :maker, 1) -> made_by(backend, backend.maker(options))
      true -> &installed(backend, &1, options)
    end
  end

  defp made_by(backend, make), do: fn service -> {backend, make.(service)} end

  defp installed(backend, service, options) do
    {:ok, config} = backend.install(service, options)
    if function_exported?(backend, :admit, 2), do: {backend, config}, else: {Basic, {backend, config}}
  end

  defp telling(settings) do
    defaults = Options.defaults(:circuit_breaker)

    Enum.reject(settings, fn {key, value} ->
      key in [:backend, :melt] or (key not in @always and defaults[key] == value)
    end)
  end

  @doc "Returns whether a breaker has nothing to remember."
  @spec idle?(t(), term()) :: boolean()
  def idle?(nil, _service), do: true

  def idle?({backend, config}, service) do
    if function_exported?(backend, :idle?, 2),
      do: backend.idle?(service, config),
      else: backend.ask(service, config) == :ok
  end

  @doc "Returns which outcomes the breaker that these options describe wants to hear of."
  @spec watch(keyword()) :: :failures | :outcomes | :durations
  def watch(settings) do
    {backend, own} = Settings.backend(settings)
    if function_exported?(backend, :watch, 1), do: backend.watch(settings ++ own), else: :failures
  end

  @doc "Puts `new` in the place of `old` by calling `put`. A state that a hand has set is kept."
  @spec replace(term(), t(), t(), (() -> :ok)) :: :ok
  def replace(_service, same, same, put), do: put.()

  # A backend that knows its breakers by the service's name has the new one in the old one's place already.
  def replace(_service, {Basic, {backend, _}}, {Basic, {backend, _}}, put), do: put.()

  def replace(service, {backend, old}, {backend, new}, put) do
    if function_exported?(backend, :succeed, 3) do
      put.()
      backend.succeed(service, new, old)
    else
      take_over(service, backend, old, new, put)
    end
  end

  def replace(service, old, _new, put) do
    put.()
    remove(service, old)
  end

  # A hand may come in between and change the old one after it was asked for its state: so it is looked at again when
  # every later hand finds the new one. What such a later hand did to the new one stands.
  defp take_over(service, backend, old, new, put) do
    forced? = inherit?(backend, service, new, old)
    put.()

    cond do
      forced? and set_by_hand?(backend, service, old) -> backend.retire(service, old)
      forced? -> close_both(backend, service, new, old)
      inherit?(backend, service, new, old) -> backend.retire(service, old)
      true -> backend.remove(service, old)
    end
  end

  defp inherit?(backend, service, new, old),
    do: function_exported?(backend, :inherit, 3) and backend.inherit(service, new, old)

  defp set_by_hand?(backend, service, breaker), do: backend.look(service, breaker).state in [:forced_open, :bypassed]

  defp close_both(backend, service, new, old) do
    backend.retire(service, old)
    backend.close(service, new)
  end

  @doc "Takes the breaker away."
  @spec remove(term(), t()) :: :ok
  def remove(_service, nil), do: :ok
  def remove(service, {backend, config}), do: backend.remove(service, config)

  @doc "Lets go of a breaker that has nothing to remember. A backend may know it by the service's name for ever else."
  @spec let_go(term(), t()) :: :ok
  def let_go(service, breaker), do: unless(object?(breaker), do: remove(service, breaker), else: :ok)

  @doc "Returns whether a breaker is nothing but its config: who forgets that has forgotten it."
  @spec object?(t()) :: boolean()
  def object?(nil), do: true
  def object?({backend, _config}), do: function_exported?(backend, :idle?, 2)

  @doc "Lets an attempt through, or says for how long not."
  @spec enter(Service.t()) :: {:ok, term()} | {:open, non_neg_integer() | :infinity | nil}
  def enter(%{breaker: nil}), do: {:ok, 0}
  def enter(%{name: name, breaker: {backend, config}}), do: backend.admit(name, config)

  @doc "Reports how an attempt ended."
  @spec settle(Service.t(), term(), :success | :failure | :ignore, non_neg_integer()) :: :ok
  def settle(%{breaker: nil}, _permit, _outcome, _duration), do: :ok

  def settle(%{name: name, breaker: {backend, config}}, permit, outcome, duration),
    do: backend.report(name, config, permit, outcome, duration)

  @doc """
  Calls one of the backend's functions for a service by name.

  A service without a breaker has nothing to act on, and gives `without`; one that is not started, or whose backend has
  no such function, gives `{:error, :not_found}`.
  """
  @spec act(term(), atom(), [term()], :ok | {:error, :not_found}) :: :ok | {:error, :not_found}
  def act(service, function, arguments, without \\ :ok) do
    case Service.get(service) do
      nil -> {:error, :not_found}
      %Service{breaker: nil} -> without
      %Service{breaker: breaker} -> act_on(breaker, service, function, arguments)
    end
  end

  # A service that was started afresh meanwhile has another breaker, and that one is meant as well.
  defp act_on({backend, config} = breaker, service, function, arguments) do
    result = apply_to(backend, function, [service, config | arguments])

    case Service.get(service) do
      %Service{breaker: {_, _} = other} when other != breaker -> act_on(other, service, function, arguments)
      _same -> result
    end
  end

  defp apply_to(backend, function, arguments) do
    if Code.ensure_loaded?(backend) and function_exported?(backend, function, length(arguments)),
      do: apply(backend, function, arguments),
      else: {:error, :not_found}
  end

  @doc "Returns what the service's breaker shows; `nil` if the service is not started."
  @spec look(term()) :: %{required(:state) => atom(), optional(atom()) => term()} | nil
  def look(service) do
    case Service.get(service) do
      nil -> nil
      %Service{breaker: nil} -> %{state: :closed}
      %Service{breaker: {backend, config}} -> backend.look(service, config)
    end
  end
end
